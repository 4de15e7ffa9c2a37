# Proves that waits are counted by query identifier: for each way that statements
# come to the gate under that of pg_stat_statements, in a table of bounded size
# that keeps those which wait most, and shown to whom they concern.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use GateTest;
use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;

my $places = 3;
my $gate = GateTest->new(
	'queries',
	max_active_backends => 1,
	handoff_after => 0,
	lend_after => 60_000,
	compute_query_id => 'on',
	max_tracked_queries => $places);
my $node = $gate->node;

$gate->value('CREATE ROLE plain LOGIN');

# With a holder in the only slot, the code starts something in the session, which
# queues; it is let in once it has waited for longer than so many ms.
sub wait_once
{
	my ($session, $start, $ms) = @_;

	my $worker = $gate->worker;
	ref $start ? $start->($session) : $session->start($start);
	$gate->await_queued($session);
	$gate->await(
		'SELECT wait_time > ' . ($ms // 0) . ' FROM pg_stat_admission_gate_backends WHERE pid = ' . $session->pid);
	$gate->stop_worker($worker);
	$session->finish;
	$worker->quit;
	return;
}

sub reset_waits { return $gate->value('SELECT pg_stat_admission_gate_reset()'); }

# What PostgreSQL says is the query identifier of a statement
sub query_id
{
	my ($sql) = @_;
	return ($gate->value("EXPLAIN (VERBOSE, COSTS OFF) $sql") =~ /Query Identifier: (-?\d+)/)[0];
}

# The names of the statements in the view, in its order
my %name;

sub names
{
	return join ' ', map { $name{$_} // $_ } split /\n/,
	  $gate->value('SELECT queryid FROM pg_stat_admission_gate_queries');
}

# A statement with that name, which none of the other tests has
sub statement
{
	my ($name) = @_;
	my $sql = "SELECT 1 AS $name" . ', 1' x scalar keys %name;
	$name{ query_id($sql) } = $name;
	return $sql;
}

# ----------------------------------------------------------------
# What is counted
# ----------------------------------------------------------------

my ($short, $long) = map { statement($_) } qw(short long);
my $session = $gate->session;

reset_waits();
$session->query($short);
is(names(), '', 'who does not wait is not counted');
wait_once($session, $short);
is(names(), 'short', 'a wait is counted by its query identifier');
is( $gate->value(
		'SELECT userid::regrole, datname, waits, total_wait_time > 0, total_wait_time = max_wait_time
		FROM pg_stat_admission_gate_queries JOIN pg_database d ON d.oid = dbid'),
	$gate->value(q{SELECT current_user || '|postgres|1|t|t'}),
	'with its user and database');
wait_once($session, $long, $gate->counter('total_wait_time'));
is(names(), 'long short', 'the most waited comes first');
wait_once($session, $short, $gate->counter('total_wait_time'));
is(names(), 'short long', 'whatever came last');
is( $gate->value(
		'SELECT waits, total_wait_time > max_wait_time, max_wait_time > total_wait_time / 2 FROM pg_stat_admission_gate_queries LIMIT 1'
	),
	'2|t|t',
	'waits are added up, and the longest is kept');
is( $gate->value(
		'SELECT abs(sum(q.total_wait_time) - p.total_wait_time) < 0.001, max(q.max_wait_time) = p.max_wait_time
		FROM pg_stat_admission_gate_queries q, pg_stat_admission_gate p GROUP BY p.total_wait_time, p.max_wait_time'),
	't|t',
	'what was waited in all is shared out');

$gate->value('CREATE DATABASE other');
my $elsewhere = $gate->session(database => 'other');
wait_once($elsewhere, $short);
is($gate->value('SELECT count(*), count(DISTINCT queryid) FROM pg_stat_admission_gate_queries'),
	'3|2', 'each database on its own');
$elsewhere->quit;

# Waits in vain count, too.
{
	reset_waits();
	is(names(), '', 'a reset empties the view');
	my $holder = $gate->holder;
	$session->query("SET admission_gate.queue_timeout = '10ms'");
	is($session->start($short)->sqlstate, '53000', 'a wait that times out');
	$session->query('RESET admission_gate.queue_timeout');
	$session->start($short);
	$gate->await_queued($session);
	$session->cancel;
	is($session->sqlstate, '57014', 'a wait that is cancelled');
	$session->start($short);
	$gate->await_queued($session);
	$gate->value('SELECT pg_terminate_backend(' . $session->pid . ')');
	$session->result;
	$gate->await('SELECT sum(waits) = 3 FROM pg_stat_admission_gate_queries', 'three waits');
	is(names(), 'short', 'waits in vain are counted, too');
	$_->quit foreach ($holder, $session);
	$session = $gate->session;
}

# ----------------------------------------------------------------
# To whom it is shown
# ----------------------------------------------------------------

{
	reset_waits();
	$gate->value('CREATE ROLE monitor IN ROLE pg_monitor');
	my $plain = $gate->session(user => 'plain');
	wait_once($plain, $short);
	wait_once($session, $long, $gate->counter('total_wait_time'));
	my $all = 'SELECT array_agg(userid::regrole), array_agg(queryid) FROM pg_stat_admission_gate_queries';
	my ($users, $both) = split /\|/, $gate->value($all);
	my $own = $both =~ s/-?\d+/NULL/r;

	$gate->value('SET ROLE plain');
	is($gate->value($all), "$users|$own", 'a user sees which of his queries have waited');
	$gate->value('SET ROLE monitor');
	is($gate->value($all), "$users|$both", 'pg_monitor those of all users');
	$gate->value('RESET ROLE');
	$plain->quit;
}

# ----------------------------------------------------------------
# The size
# ----------------------------------------------------------------

{
	my ($first, $second, $third, $rare, $new) = map { statement($_) } qw(first second third rare new);

	reset_waits();
	wait_once($session, $first, 300);
	wait_once($session, $_, 2 * $gate->counter('total_wait_time')) foreach ($second, $third);
	is(names(), 'third second first', 'there is room for three');
	wait_once($session, $rare);
	is(names(), 'third second rare', 'a fourth takes the place of what has waited least');
	wait_once($session, $new);
	is(names(), 'third second new', 'and so does a fifth');
}

# Many at once, and more than there is room for
sub run_pgbench
{
	my $script = PostgreSQL::Test::Utils::tempdir() . '/columns.sql';
	append_to_file($script, join '', map { 'SELECT ' . join(', ', (1) x $_) . ";\n" } 1 .. 10);
	# However busy the machine is, each client waits at least once.
	my $worker = $gate->worker;
	my $pgbench = IPC::Run::start(
		[ 'pgbench', '-n', '-c', '10', '-t', '50', '-f', $script, '-h', $node->host, '-p', $node->port, 'postgres' ],
		'>' => \my $out,
		'2>' => \my $err,
		IPC::Run::timeout($GateClient::patience));
	$gate->await('SELECT waiting = 10 FROM pg_stat_admission_gate');
	$gate->stop_worker($worker);
	$worker->quit;
	ok(IPC::Run::finish($pgbench), 'pgbench does well') or diag $err;
	return;
}

run_pgbench();
is($gate->value('SELECT count(*) FROM pg_stat_admission_gate_queries'), $places, 'no more than there is room for');

# ----------------------------------------------------------------
# When it is off
# ----------------------------------------------------------------

reset_waits();
$gate->set(compute_query_id => 'off');
$session->quit;
$session = $gate->session;
wait_once($session, $short);
is($gate->counter('queued'), '1', 'without query identifiers, one waits');
is(names(), '', 'but is not counted');
$session->quit;

$gate->configure(max_tracked_queries => 0, compute_query_id => 'on');
$gate->value('ALTER SYSTEM RESET compute_query_id');
$gate->restart('fast');
$gate->await_restart;
$session = $gate->session;
wait_once($session, $short);
reset_waits();
is($gate->value('SELECT count(*) FROM pg_stat_admission_gate_queries'), '0', 'a table without a place is empty');
$session->quit;

# ----------------------------------------------------------------
# pg_stat_statements
# ----------------------------------------------------------------

$gate->configure(max_tracked_queries => 100, compute_query_id => 'auto');
SKIP:
{
	skip 'there is no pg_stat_statements', 1
	  if !$gate->has_contrib('pg_stat_statements');

	$gate->configure(shared_preload_libraries => 'admission_gate, pg_stat_statements');
	$gate->restart('fast');
	$gate->await_restart;
	$session = $gate->session;
	$session->query('PREPARE by_command AS SELECT count(*) FROM pg_am');
	$session->query('SET plan_cache_mode = force_generic_plan');
	$session->prepare('cached', 'SELECT count(*) FROM pg_cast');
	$session->start_prepared('cached')->finish;
	$session->prepare('planned', 'SELECT count(*) FROM pg_class WHERE oid = $1::oid');
	$session->prepare('prepared_begin', 'BEGIN');
	$session->start_prepared('prepared_begin')->finish;
	$session->query('COMMIT');

	# What waits, its statement as pg_stat_statements has it, how it is started
	my @ways = (
		[ 'a simple query', 'SELECT count(*) FROM pg_type', 'SELECT count(*) FROM pg_type' ],
		[
			'the extended protocol',
			'SELECT count(*) FROM pg_proc',
			sub { $_[0]->start_extended('SELECT count(*) FROM pg_proc') }
		],
		[ 'a plan from the cache', 'SELECT count(*) FROM pg_cast', sub { $_[0]->start_prepared('cached') } ],
		[
			'a plan made for its values',
			'SELECT count(*) FROM pg_class WHERE oid = $1::oid',
			sub { $_[0]->start('SET plan_cache_mode = force_custom_plan')->finish; $_[0]->start_prepared('planned', 1) }
		],
		[ 'EXECUTE', 'PREPARE by_command AS SELECT count(*) FROM pg_am', 'EXECUTE by_command' ],
		[
			'EXECUTE in the extended protocol',
			'PREPARE by_command AS SELECT count(*) FROM pg_am',
			sub { $_[0]->start_extended('EXECUTE by_command') }
		],
		[ 'a block', 'BEGIN', 'BEGIN' ],
		[ 'a block in the extended protocol', 'BEGIN', sub { $_[0]->start_extended('BEGIN') } ],
		[ 'a block by a statement that was executed before', 'BEGIN', sub { $_[0]->start_prepared('prepared_begin') } ],
		[ 'a utility command', 'CREATE TABLE made ()', 'CREATE TABLE made ()' ],
		[ 'a message of two statements', 'SELECT count(*) FROM pg_index', 'SELECT count(*) FROM pg_index; SELECT 1' ]);
	for my $way (@ways)
	{
		my ($what, $statement, $start) = @$way;

		reset_waits();
		wait_once($session, $start);
		$session->query('COMMIT');
		is( $gate->value(
				'SELECT s.query, q.waits
				FROM pg_stat_admission_gate_queries q LEFT JOIN pg_stat_statements s USING (userid, dbid, queryid)'),
			"$statement|1",
			"$what is counted as in pg_stat_statements");
	}

	reset_waits();
	run_pgbench();
	is( $gate->value(
			'SELECT queued > 0, (SELECT sum(waits) FROM pg_stat_admission_gate_queries) = queued FROM pg_stat_admission_gate'
		),
		't|t',
		'no wait is lost');
	is( $gate->value(
			'SELECT count(*) > 0, count(*) = count(s.query)
			FROM pg_stat_admission_gate_queries q LEFT JOIN pg_stat_statements s USING (userid, dbid, queryid)'),
		't|t',
		'each query joins');
	$session->quit;
}

$gate->ok_quiet('at the end');
$gate->ok_adds_up('at the end');
$gate->node->stop;

done_testing();
