# Proves that waiting pins nothing: a session in the queue holds no snapshot, so
# vacuum and pruning go on, and its statement sees what was committed while it
# waited.

use strict;
use warnings;
use lib 'test/perl';
use GateTest;

my $gate = GateTest->new('snapshot', max_active_backends => 1, idle_after => -1);

$gate->value(
	'CREATE TABLE t (id int PRIMARY KEY, v int)',
	'INSERT INTO t VALUES (1, 0)',
	'CREATE FUNCTION v() RETURNS int STABLE LANGUAGE sql AS $$ SELECT v FROM t WHERE id = 1 $$',
	'CREATE PROCEDURE read_v(INOUT a int) LANGUAGE plpgsql AS $$ BEGIN SELECT v INTO a FROM t WHERE id = 1; END $$',
	'CREATE MATERIALIZED VIEW m AS SELECT v FROM t',
	'CREATE TABLE made (v int)',
	'CREATE FUNCTION catches() RETURNS int LANGUAGE plpgsql AS $$
		BEGIN
			PERFORM v FROM t;
			RAISE division_by_zero;
		EXCEPTION WHEN division_by_zero OR insufficient_resources THEN
			RETURN 1;
		END $$');

my $session = $gate->session;
my $number = 0;

# With a holder in the only slot, starts something in the session; commits a new value of v
# meanwhile; lets the session run.  What it, or the statement after it, answers must be the
# new value.
sub sees_the_new_value
{
	my ($what, $start, $then) = @_;

	my $holder = $gate->holder;
	$gate->queue($session, $start);
	is($gate->activity($session, 'backend_xmin IS NULL AND backend_xid IS NULL'),
		't', "$what holds no snapshot while it waits");
	$number++;
	$gate->value("UPDATE t SET v = $number WHERE id = 1");
	$holder->query('COMMIT');
	my $result = $session->result;
	$result = $session->start($then)->result if $then;
	my $answer = $result->{error} ? $result->{error}{M} : $result->{copy} || $result->{rows}[0][0];
	return is($answer, $result->{copy} ? "$number\n" : $number, "$what sees what was committed while it waited");
}

# Lone statements in READ COMMITTED
my %statement = (
	'SELECT' => 'SELECT v FROM t WHERE id = $1',
	'UPDATE ... RETURNING' => 'UPDATE t SET v = v WHERE id = $1 RETURNING v',
	'modifying CTE' => 'WITH u AS (UPDATE t SET v = v WHERE id = $1 RETURNING v) SELECT v FROM u',
	'function' => 'SELECT v FROM t WHERE id = $1 OR v() < 0');

sees_the_new_value($_, $_)
  foreach (
	(map { s/\$1/1/r } values %statement),
	'SELECT v FROM t WHERE id = 1 FOR UPDATE',
	'INSERT INTO t SELECT v + 100, v FROM t WHERE id = 1 RETURNING v',
	'COPY (SELECT v FROM t WHERE id = 1) TO STDOUT',
	'CALL read_v(0)');
sees_the_new_value("an extended $_->[0]", sub { $session->start_extended(@$_) })
  foreach (
	[ $statement{SELECT}, 1 ],
	['SELECT v FROM t WHERE id = 1'],
	[ $statement{'UPDATE ... RETURNING'}, 1 ],
	[ 'CALL read_v($1)', 0 ]);

# An UPDATE without a result finds the row.
my $update = 'UPDATE t SET id = -v WHERE id = 1 AND v = ';
my $found = 'UPDATE t SET id = 1 WHERE id = -v RETURNING v';
sees_the_new_value('an UPDATE', $update . ($number + 1), $found);

# Plans from the cache
$session->query('SET plan_cache_mode = force_generic_plan');
for my $kind (sort keys %statement)
{
	$session->prepare($kind, $statement{$kind});
	$session->start_prepared($kind, 1)->finish for (1 .. 2);
	sees_the_new_value("a prepared $kind with a cached plan", sub { $session->start_prepared($kind, 1) });
	sees_the_new_value("EXECUTE of a $kind with a cached plan", "EXECUTE \"$kind\"(1)");
	sees_the_new_value(
		"an extended EXECUTE of a $kind with a cached plan",
		sub { $session->start_extended("EXECUTE \"$kind\"(1)") });
}
$session->prepare('plain_update', "$update \$1::int");
$session->start_prepared('plain_update', -1)->finish for (1 .. 2);
sees_the_new_value('a prepared UPDATE with a cached plan',
	sub { $session->start_prepared('plain_update', $number + 1) }, $found);
$session->query('SET plan_cache_mode = force_custom_plan');
sees_the_new_value('a prepared SELECT with a plan of its own', sub { $session->start_prepared('SELECT', 1) });
sees_the_new_value('EXECUTE with a plan of its own', 'EXECUTE "SELECT"(1)');
$session->query('RESET plan_cache_mode');

# Utilities
$gate->value('DELETE FROM t WHERE id <> 1');
my $insert = 'INSERT INTO made SELECT v FROM t WHERE id = 1';
$session->query("PREPARE into_made AS $insert");
for (
	[ 'CREATE TABLE AS', 'CREATE TABLE x AS SELECT v FROM t WHERE id = 1', 'SELECT v FROM x' ],
	[ 'CREATE TABLE AS EXECUTE', 'CREATE TABLE x2 AS EXECUTE "SELECT"(1)', 'SELECT v FROM x2' ],
	[ 'EXPLAIN ANALYZE', "EXPLAIN (ANALYZE) $insert", 'SELECT v FROM made' ],
	[ 'EXPLAIN ANALYZE EXECUTE', 'EXPLAIN (ANALYZE) EXECUTE into_made', 'SELECT v FROM made' ],
	[ 'REFRESH MATERIALIZED VIEW', 'REFRESH MATERIALIZED VIEW m', 'SELECT v FROM m LIMIT 1' ],
	[ 'DO', "DO \$\$ BEGIN $insert; END \$\$", 'SELECT v FROM made' ])
{
	$gate->value('TRUNCATE made');
	sees_the_new_value(@$_);
}

# Blocks
my $select = 'SELECT v FROM t WHERE id = 1';
for my $level ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE')
{
	for my $begin (
		"BEGIN ISOLATION LEVEL $level",
		"START TRANSACTION ISOLATION LEVEL $level, READ ONLY",
		sub { $session->start_extended("BEGIN ISOLATION LEVEL $level") })
	{
		sees_the_new_value(ref $begin ? "an extended BEGIN of $level" : $begin, $begin, $select);
		$session->query('COMMIT');
	}
	my $block = "BEGIN ISOLATION LEVEL $level; $select; COMMIT";
	sees_the_new_value("$block in one message", $block);
	$session->query("SET default_transaction_isolation = '$level'");
	sees_the_new_value("BEGIN with $level as default", 'BEGIN', $select);
	$session->query('COMMIT; RESET default_transaction_isolation');
}

# Above READ COMMITTED, a lone statement waits with the snapshot of its
# transaction, and sees the database as of that.
for my $level ('REPEATABLE READ', 'SERIALIZABLE')
{
	my $old = $number;
	my $holder = $gate->holder;
	$session->query("SET default_transaction_isolation = '$level'");
	$gate->queue($session, $select);
	is($gate->activity($session, 'backend_xmin IS NOT NULL'), 't', "a lone $level statement waits with a snapshot");
	$number++;
	$gate->value("UPDATE t SET v = $number WHERE id = 1");
	$holder->query('COMMIT');
	is($session->finish, $old, "a lone $level statement sees one snapshot, that of its beginning");
	$session->query('RESET default_transaction_isolation');
}

# What follows from it: dead rows can be removed while a queue stands.
{
	my $holder = $gate->holder;
	my @waiters = map { $gate->waiter('SELECT count(*) FROM t') } 1 .. 10;
	$gate->value("UPDATE t SET v = v + 1 WHERE id = 1") for (1 .. 20);
	my $vacuum = $gate->observer->start('VACUUM (VERBOSE) t')->result;
	like(
		join("\n", @{ $vacuum->{notices} }),
		qr/ 0 are dead but not yet removable/,
		'vacuum removes dead rows beside a queue of readers');
	$holder->query('COMMIT');
	$gate->ok_all_done('the readers run', @waiters);
}

# A wait that ends in an error leaves the session in order.
{
	my $holder = $gate->holder;
	for my $start (
		$select,
		'UPDATE t SET v = v WHERE id = 1 RETURNING v',
		'EXECUTE "SELECT"(1)',
		'CALL read_v(0)',
		sub { $session->start_prepared('SELECT', 1) },
		sub { $session->start_prepared('UPDATE ... RETURNING', 1) },
		'CREATE TABLE y AS SELECT 1')
	{
		$gate->queue($session, $start);
		$session->cancel;
		is($session->sqlstate, '57014', 'a wait is cancelled');
		is($gate->activity($session, 'backend_xmin IS NULL'), 't', 'and leaves no snapshot behind');
	}
	$holder->query('COMMIT');
	is($session->start_prepared('SELECT', 1)->finish, $gate->value($select), 'the prepared statement is still there');
}

# A function that the client calls without a statement waits inside a subtransaction, and
# catches an error there.  The snapshot of the call outlives that.
{
	my $catches = $gate->value(q{SELECT 'catches'::regproc::oid});
	for my $timeout (0, 5000)
	{
		my $holder = $gate->holder;
		my $caller = $gate->session(session => { 'admission_gate.queue_timeout' => $timeout });
		$gate->queue($caller, sub { $caller->call_function($catches) });
		$gate->await('SELECT timeouts > 0 FROM pg_stat_admission_gate') if $timeout;
		$holder->query('COMMIT');
		is($caller->result->{error}, undef, 'a fast-path call catches an error after a wait, timeout ' . $timeout);
		is($caller->query('SELECT 1'), 1, 'and its session goes on');
	}
}

$gate->ok_quiet('after all');
unlike(slurp_file($gate->node->logfile), qr/WARNING|snapshot reference|TRAP/, 'no snapshot is left over');
$gate->finish;
