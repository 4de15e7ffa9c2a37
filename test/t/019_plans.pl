# Proves what a plan can say at the gate: a cheap statement passes, a costly one
# uses another pool, and a parallel one counts for its workers, too.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use GateTest;
use Test::More;

my $gate = GateTest->new(
	'plans',
	max_active_backends => 1,
	max_parallel_workers_per_gather => 2,
	lend_after => -1);
$gate->value($_) foreach (
	'CREATE TABLE t AS SELECT i AS id, 0 AS v FROM generate_series(1, 10000) i',
	'CREATE UNIQUE INDEX ON t (id)',
	'ANALYZE t',
	'CREATE FUNCTION all_of_t() RETURNS bigint LANGUAGE plpgsql COST 1 AS $$ BEGIN RETURN (SELECT count(*) FROM t); END $$');

# Starts a statement in one of three ways: from a plan in the cache, without one,
# or as a simple query.
sub start
{
	my ($session, $how, $sql) = @_;

	return $session->start($sql) if $how eq 'simple';
	return $session->start_extended($sql) if $how eq 'extended';
	$session->query('SET plan_cache_mode = force_generic_plan');
	$session->prepare('s', $sql);
	return $session->start_prepared('s');
}

my $cheap = 'SELECT v FROM t WHERE id = 1';
my $costly = 'SELECT count(*) FROM t';

# ----------------------------------------------------------------
# min_cost
# ----------------------------------------------------------------

my $holder = $gate->holder;
foreach my $how ('simple', 'extended', 'cached')
{
	my $session = $gate->session(session => { 'admission_gate.min_cost' => 50 });
	my $passed = $gate->counter('passed');
	$gate->ok_passes(start($session, $how, $cheap), "$how: below min_cost, a statement passes");
	is($gate->counter('passed'), $passed + 1, "$how: it is counted");
	is($gate->gauges, '1|0|0', "$how: it holds no slot");
	$session->quit;

	$session = $gate->session(session => { 'admission_gate.min_cost' => 50 });
	$gate->ok_waits(start($session, $how, $costly), "$how: above min_cost, it waits");
	$session->cancel;
	$session->result;
	is($gate->counter('passed'), $passed + 1, "$how: it is not counted");
	$session->quit;
}
{
	my $session = $gate->session(session => { 'admission_gate.min_cost' => 50 });
	$gate->ok_waits($session->start('BEGIN'), 'a block waits, as nobody knows what comes');
	$session->cancel;
	$session->result;
	$gate->ok_waits($session->start('CREATE TABLE u ()'), 'so does a utility command');
	$session->cancel;
	$session->result;

	my $before = $gate->counter("ARRAY[admitted, passed]");
	$gate->ok_passes($session->start('SELECT all_of_t()'), 'what a cheap statement runs inside passes, too');
	my ($admitted, $passed) = $before =~ /(\d+),(\d+)/;
	is($gate->counter('ARRAY[admitted, passed]'), "{$admitted," . ($passed + 1) . '}', 'and is not counted');

	# Having passed, it may hold locks: it must not wait any more.
	my $forced = $gate->counter('forced');
	$gate->ok_passes($session->start("$cheap; $costly"), 'a transaction that has begun with a cheap statement does not wait');
	is($gate->counter('forced'), $forced + 1, 'its costly one is forced');
	is($gate->gauges, '1|0|0', 'and its slot is given back');
	$session->quit;
}

# ----------------------------------------------------------------
# cost_pool
# ----------------------------------------------------------------

$holder->query('COMMIT');
$gate->set(max_active_backends => 4, pools => 'batch: max_active = 1');
$gate->await("SELECT count(*) = 2 FROM pg_stat_admission_gate");
foreach my $how ('simple', 'extended', 'cached')
{
	my %settings = ('admission_gate.cost_pool' => 'batch', 'admission_gate.cost_pool_above' => 50);
	my ($in_batch, $session) = ($gate->session(session => { 'admission_gate.pool' => 'batch' }), $gate->session(session => \%settings));

	$in_batch->query('BEGIN');
	$gate->ok_passes(start($session, $how, $cheap), "$how: a cheap statement uses the session's pool");
	$session->quit;
	$session = $gate->session(session => \%settings);
	$gate->ok_waits(start($session, $how, $costly), "$how: a costly one another");
	is($gate->counter('waiting', 'batch'), '1', "$how: it is in the queue of that");
	$in_batch->query('COMMIT');
	$session->finish;
	$in_batch->query('BEGIN');
	$gate->ok_passes($session->start($cheap), "$how: the next cheap one is back");
	$in_batch->query('COMMIT');
	$session->query($costly);
	$session->query('SET admission_gate.cost_pool_above = -1');
	$in_batch->query('BEGIN');
	$gate->ok_passes($session->start($costly), "$how: and so is a costly one when costs do not count any more");
	$in_batch->query('COMMIT');
	$_->quit foreach ($in_batch, $session);
}
$gate->ok_quiet('after costs');
$gate->ok_adds_up('after costs');

# ----------------------------------------------------------------
# parallel_slots
# ----------------------------------------------------------------

# A session whose scans have two workers each
sub parallel_session
{
	my ($slots) = @_;
	return $gate->session(
		session => {
			'admission_gate.parallel_slots' => $slots,
			min_parallel_table_scan_size => 0,
			parallel_setup_cost => 0,
			parallel_tuple_cost => 0
		});
}
$gate->set(pools => '');
$gate->value('CREATE TABLE big AS SELECT i AS id FROM generate_series(1, 20000) i');
$gate->value('ANALYZE big');

# What one parallel query leaves of four slots, while it waits for its client.
my $query = "SELECT repeat('x', 1000), id FROM big";
foreach my $case ([ 'leader', 3 ], [ 'workers', 1 ])
{
	my ($slots, $free) = @$case;
	my $parallel = parallel_session($slots);
	my @others = map { $gate->session } 1 .. 4;

	like($parallel->query("EXPLAIN $query"), qr/Workers Planned: 2/, "$slots: a plan has two workers");
	$parallel->start($query);
	$gate->await_wait_event_type($parallel, 'Client');
	$others[$_]->query('BEGIN') foreach (0 .. $free - 1);
	$gate->ok_waits($others[$free]->start('SELECT 1'), "$slots: it leaves $free of four slots");
	is($gate->gauges, ($free + 1) . '|0|1', "$slots: and counts as one backend");
	$parallel->result;
	$others[$free]->finish;
	$others[$_]->query('COMMIT') foreach (0 .. $free - 1);
	$_->quit foreach ($parallel, @others);
	$gate->ok_quiet($slots);
}

# It never waits while it holds a slot, nor takes more than there are.
{
	my $parallel = parallel_session('workers');
	my ($one, $two) = map { $gate->session } 1 .. 2;
	$gate->set(max_active_backends => 2);

	$one->query('BEGIN');
	$gate->ok_passes($parallel->start($costly), 'a parallel query enters for one slot and does not wait for others');
	$parallel->start($query);
	$gate->await_wait_event_type($parallel, 'Client');
	$two->start('SELECT 1');
	$gate->ok_waits($two, 'others wait for its workers');
	$one->query('COMMIT');
	$gate->ok_waits($two, 'until it is done, if it uses all slots');
	$gate->set(max_active_backends => 3);
	$gate->ok_passes($two, 'but not more than there were');
	$parallel->result;
	$_->quit foreach ($parallel, $one, $two);
	$gate->ok_quiet('after the limit was exceeded');
}

# EXPLAIN and what is fetched in parts have no workers.
{
	$gate->set(max_active_backends => 2);
	my ($parallel, $other) = (parallel_session('workers'), $gate->session);
	$parallel->query("BEGIN; EXPLAIN $query");
	$gate->ok_passes($other->start('SELECT 1'), 'EXPLAIN counts for one');
	$parallel->parse('', $query)->bind('portal', '')->execute('portal', 1)->sync;
	is($parallel->result->{suspended}, 1, 'of another query, one row is fetched');
	$gate->ok_passes($other->start('SELECT 1'), 'this counts for one, too');
	$parallel->query('COMMIT');
	$_->quit foreach ($parallel, $other);
}

# Lending takes all of it, and so does the way back.
{
	$gate->set(max_active_backends => 3, lend_after => 50);
	my $parallel = parallel_session('workers');
	my @others = map { $gate->session } 1 .. 3;

	$parallel->start($query);
	$gate->await_wait_event_type($parallel, 'Client');
	$others[0]->start('SELECT 1');
	$others[0]->finish;
	is($gate->gauges, '0|1|0', 'a parallel query lends');
	$gate->set(lend_after => -1);
	$_->query('BEGIN') foreach @others;
	is($gate->gauges, '3|1|0', 'the slots of its workers, too');
	$parallel->result;
	$_->query('COMMIT') foreach @others;
	$_->quit foreach ($parallel, @others);
	$gate->ok_quiet('after lending');
}
$gate->ok_adds_up('at the end');

$gate->node->stop;
done_testing();
