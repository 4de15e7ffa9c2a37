# Proves that waiting pins nothing: a session in the queue holds no snapshot, so
# vacuum and pruning go on, and its statement sees what was committed while it
# waited.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use GateTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $gate = GateTest->new(
	'snapshot',
	max_active_backends => 1,
	lend_after => 60_000,
	max_prepared_transactions => 5);

$gate->value($_)
  foreach (
	'CREATE TABLE t (id int PRIMARY KEY, v int)',
	'INSERT INTO t VALUES (1, 0)',
	'CREATE FUNCTION v() RETURNS int STABLE LANGUAGE sql AS $$ SELECT v FROM t WHERE id = 1 $$',
	'CREATE PROCEDURE read_v(INOUT a int) LANGUAGE plpgsql AS $$ BEGIN SELECT v INTO a FROM t WHERE id = 1; END $$',
	'CREATE MATERIALIZED VIEW m AS SELECT v FROM t');

my $number = 0;

# With a holder in the only slot, starts something in the session; commits a new
# value of v meanwhile; lets the session run and returns what it answers and the
# new value.
sub while_waiting
{
	my ($what, $session, $start) = @_;

	my $holder = $gate->holder;
	$start->();
	$gate->await_queued($session);
	is( $gate->value(
			'SELECT backend_xmin IS NULL AND backend_xid IS NULL FROM pg_stat_activity WHERE pid = ' . $session->pid),
		't',
		"$what holds no snapshot while it waits");
	$number++;
	$gate->value("UPDATE t SET v = $number WHERE id = 1");
	$holder->query('COMMIT');
	$holder->quit;
	my $result = $session->result;
	my $answer =
		$result->{error}      ? $result->{error}{M}
	  : $result->{copy} ne '' ? $result->{copy}
	  : join ' ', map {
		map { $_ // '' }
		  @$_
	  } @{ $result->{rows} };
	chomp $answer;
	return ($answer, $number);
}

sub sees_the_new_value
{
	my ($what, $session, $start) = @_;

	my ($answer, $expected) = while_waiting($what, $session, $start);
	is($answer, $expected, "$what sees what was committed while it waited");
	return;
}

sub sees_the_new_value_by
{
	my ($session, $sql) = @_;
	return sees_the_new_value($sql, $session, sub { $session->start($sql) });
}

# ----------------------------------------------------------------
# Lone statements in READ COMMITTED
# ----------------------------------------------------------------

my $session = $gate->session;

sees_the_new_value_by($session, $_)
  foreach (
	'SELECT v FROM t WHERE id = 1',
	'SELECT v()',
	'SELECT v FROM t WHERE id = 1 FOR UPDATE',
	'UPDATE t SET v = v WHERE id = 1 RETURNING v',
	'WITH u AS (UPDATE t SET v = v WHERE id = 1 RETURNING v) SELECT v FROM u',
	'INSERT INTO t SELECT v + 100, v FROM t WHERE id = 1 RETURNING v',
	'COPY (SELECT v FROM t WHERE id = 1) TO STDOUT',
	'CALL read_v(0)');

sees_the_new_value('an unnamed extended statement',
	$session, sub { $session->start_extended('SELECT v FROM t WHERE id = $1', 1) });
sees_the_new_value('an unnamed extended statement without parameters',
	$session, sub { $session->start_extended('SELECT v FROM t WHERE id = 1') });
sees_the_new_value('an extended UPDATE ... RETURNING',
	$session, sub { $session->start_extended('UPDATE t SET v = v WHERE id = $1 RETURNING v', 1) });
sees_the_new_value('an extended CALL', $session, sub { $session->start_extended('CALL read_v($1)', 0) });

# Plans from the cache
$session->query('SET plan_cache_mode = force_generic_plan');
my %statement = (
	'SELECT' => 'SELECT v FROM t WHERE id = $1',
	'UPDATE ... RETURNING' => 'UPDATE t SET v = v WHERE id = $1 RETURNING v',
	'modifying CTE' => 'WITH u AS (UPDATE t SET v = v WHERE id = $1 RETURNING v) SELECT v FROM u',
	'COPY' => 'SELECT v FROM t WHERE id = $1 OR v() < 0');
for my $kind (sort keys %statement)
{
	$session->prepare($kind, $statement{$kind});
	$session->start_prepared($kind, 1)->finish for (1 .. 2);
	sees_the_new_value("a prepared $kind with a cached plan", $session, sub { $session->start_prepared($kind, 1) });
	sees_the_new_value("EXECUTE of a $kind with a cached plan",
		$session, sub { $session->start("EXECUTE \"$kind\"(1)") });
	sees_the_new_value("an extended EXECUTE of a $kind with a cached plan",
		$session, sub { $session->start_extended("EXECUTE \"$kind\"(1)") });
}
$session->query('SET plan_cache_mode = force_custom_plan');
sees_the_new_value('a prepared SELECT with a plan of its own', $session, sub { $session->start_prepared('SELECT', 1) });
sees_the_new_value('EXECUTE with a plan of its own', $session, sub { $session->start('EXECUTE "SELECT"(1)') });
$session->query('RESET plan_cache_mode');

# An UPDATE without a result
{
	$session->prepare('plain_update', 'UPDATE t SET v = v + 1000 WHERE id = $1 AND v = $2::int');
	$session->query('SET plan_cache_mode = force_generic_plan');
	$session->start_prepared('plain_update', 1, -1)->finish for (1 .. 2);
	my $next = $number + 1;
	while_waiting('a prepared UPDATE with a cached plan',
		$session, sub { $session->start_prepared('plain_update', 1, $next) });
	is( $gate->value('SELECT v FROM t WHERE id = 1'),
		$next + 1000,
		'a prepared UPDATE with a cached plan finds the row as committed while it waited');
	$session->query('RESET plan_cache_mode');

	$next = $number + 1;
	while_waiting('an UPDATE', $session,
		sub { $session->start("UPDATE t SET v = v + 1000 WHERE id = 1 AND v = $next") });
	is( $gate->value('SELECT v FROM t WHERE id = 1'),
		$next + 1000,
		'an UPDATE finds the row as committed while it waited');
}

# Utilities
for my $case (
	[ 'CREATE TABLE AS', 'CREATE TABLE x AS SELECT v FROM t WHERE id = 1', 'SELECT v FROM x' ],
	[ 'CREATE TABLE AS EXECUTE', 'CREATE TABLE x2 AS EXECUTE "SELECT"(1)', 'SELECT v FROM x2' ],
	[ 'EXPLAIN ANALYZE', 'EXPLAIN (ANALYZE) INSERT INTO x3 SELECT v FROM t WHERE id = 1', 'SELECT v FROM x3' ],
	[ 'EXPLAIN ANALYZE EXECUTE', 'EXPLAIN (ANALYZE) EXECUTE into_x4', 'SELECT v FROM x4' ],
	[ 'REFRESH MATERIALIZED VIEW', 'REFRESH MATERIALIZED VIEW m', 'SELECT v FROM m LIMIT 1' ],
	[ 'DO', 'DO $$ BEGIN INSERT INTO x5 SELECT v FROM t WHERE id = 1; END $$', 'SELECT v FROM x5' ])
{
	my ($what, $sql, $check) = @$case;
	if ($sql =~ /x(3|4|5)|into_x4/)
	{
		my ($table) = $check =~ /(x\d)/;
		$gate->value("CREATE TABLE $table (v int)");
		$session->query("PREPARE into_x4 AS INSERT INTO x4 SELECT v FROM t WHERE id = 1")
		  if $table eq 'x4';
	}
	$gate->value('DELETE FROM t WHERE id <> 1');
	while_waiting($what, $session, sub { $session->start($sql) });
	is($gate->value($check), $number, "$what sees what was committed while it waited");
}

# ----------------------------------------------------------------
# Blocks
# ----------------------------------------------------------------

for my $level ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE')
{
	for my $begin ("BEGIN ISOLATION LEVEL $level", "START TRANSACTION ISOLATION LEVEL $level, READ ONLY")
	{
		while_waiting($begin, $session, sub { $session->start($begin) });
		is($session->query('SELECT v FROM t WHERE id = 1'),
			$number, "after $begin, the transaction sees what was committed while it waited");
		$session->query('COMMIT');
	}
	while_waiting("an extended BEGIN ISOLATION LEVEL $level",
		$session, sub { $session->start_extended("BEGIN ISOLATION LEVEL $level") });
	is($session->query('SELECT v FROM t WHERE id = 1'),
		$number, "after it, the transaction sees what was committed while it waited");
	$session->query('COMMIT');
	my $block = "BEGIN ISOLATION LEVEL $level; SELECT v FROM t WHERE id = 1; COMMIT";
	sees_the_new_value("$block in one message", $session, sub { $session->start($block) });
	$session->query("SET default_transaction_isolation = '$level'");
	while_waiting("BEGIN with $level as default", $session, sub { $session->start('BEGIN') });
	is($session->query('SELECT v FROM t WHERE id = 1'),
		$number, "after it, the transaction sees what was committed while it waited");
	$session->query('COMMIT; RESET default_transaction_isolation');
}

# ----------------------------------------------------------------
# What keeps its snapshot
# ----------------------------------------------------------------

# Above READ COMMITTED, a lone statement waits with the snapshot of its
# transaction, and sees the database as of that.
for my $level ('REPEATABLE READ', 'SERIALIZABLE')
{
	my $old = $number;
	my $holder = $gate->holder;
	$session->query("SET default_transaction_isolation = '$level'");
	$session->start('SELECT v FROM t WHERE id = 1');
	$gate->await_queued($session);
	is($gate->value('SELECT backend_xmin IS NOT NULL FROM pg_stat_activity WHERE pid = ' . $session->pid),
		't', "a lone $level statement waits with a snapshot");
	$number++;
	$gate->value("UPDATE t SET v = $number WHERE id = 1");
	$holder->query('COMMIT');
	is($session->finish, $old, "a lone $level statement sees one snapshot, that of its beginning");
	$session->query('RESET default_transaction_isolation');
	$holder->quit;
}

# ----------------------------------------------------------------
# What follows from it: dead rows can be removed while a queue stands
# ----------------------------------------------------------------

{
	my $holder = $gate->holder;
	my @waiters = map { $gate->session } 1 .. 10;
	$_->start('SELECT count(*) FROM t') foreach @waiters;
	$gate->await_waiting(10);
	$gate->value("UPDATE t SET v = v + 1 WHERE id = 1") for (1 .. 20);
	my $vacuum = $gate->observer->start('VACUUM (VERBOSE) t')->result;
	like(
		join("\n", @{ $vacuum->{notices} }),
		qr/ 0 are dead but not yet removable/,
		'vacuum removes dead rows beside a queue of readers');
	$holder->query('COMMIT');
	is(join(',', map { $_->finish } @waiters), join(',', (1) x 10), 'the readers run');
	$_->quit foreach ($holder, @waiters);
}

# A wait that ends in an error leaves the session in order.
{
	my $holder = $gate->holder;
	for my $start (
		sub { $session->start('SELECT v FROM t WHERE id = 1') },
		sub { $session->start('UPDATE t SET v = v WHERE id = 1 RETURNING v') },
		sub { $session->start('EXECUTE "SELECT"(1)') },
		sub { $session->start('CALL read_v(0)') },
		sub { $session->start_prepared('SELECT', 1) },
		sub { $session->start_prepared('UPDATE ... RETURNING', 1) },
		sub { $session->start('CREATE TABLE y AS SELECT 1') })
	{
		$start->();
		$gate->await_queued($session);
		$session->cancel;
		is($session->sqlstate, '57014', 'a wait is cancelled');
		is($gate->value('SELECT backend_xmin IS NULL FROM pg_stat_activity WHERE pid = ' . $session->pid),
			't', 'and leaves no snapshot behind');
	}
	$holder->query('COMMIT');
	is($session->query('SELECT count(*) FROM t'), '1', 'the session works on');
	$holder->quit;
}

$session->quit;
$gate->ok_quiet('at the end');
$gate->ok_adds_up('at the end');

my $log = slurp_file($gate->node->logfile);
unlike($log, qr/WARNING|snapshot reference|TRAP/, 'no warning of a snapshot left over in the server log');
$gate->node->stop;

done_testing();
