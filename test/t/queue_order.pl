# Proves who goes first in a queue: those for which others wait, and they do not enter above
# the limit without need; of those that may hold locks, whoever came first.

use strict;
use warnings;
use lib 'test/perl';
use GateTest;

my $gate = GateTest->new(
	'queue_order',
	max_active_backends => 60,
	idle_after => 30_000,
	max_connections => 140);

$gate->value('CREATE TABLE sale (id int PRIMARY KEY, n int) WITH (fillfactor = 20)', 'INSERT INTO sale VALUES (1, 0)');

$gate->value('CREATE TABLE news AS SELECT 0 AS edition');

my $want = 'UPDATE sale SET n = n + 1 WHERE id = 1';

# Of two that queue in the middle of their transactions, the first stays the first, also if it
# had to go behind one that holds no locks, for that had waited for 20 ms.
{
	my ($beginner, $first, $second) = map { $gate->session } 1 .. 3;
	my $crowd = $gate->crowd(24, "BEGIN; SELECT 1;\n$want RETURNING pg_sleep(0.01);\nCOMMIT;");
	$gate->ok_comes('bool_or(max_active > 0 AND waiting > 3) FROM pg_stat_admission_gate_hot_spots', 'a row is hot');

	# At its next BEGIN, it queues for what it always wanted.
	$beginner->query('BEGIN', $want, 'COMMIT') foreach 1 .. 8;
	$_->query('BEGIN', 'SELECT 1') foreach ($first, $second);

	my @holders = $gate->take_all_places($crowd, $want, 2);
	$gate->queue($beginner, 'BEGIN');
	$gate->await(
		"SELECT clock_timestamp() > state_change + interval '20 ms' FROM pg_stat_admission_gate_backends
		WHERE pid = " . $beginner->pid);
	$gate->queue($first, $want);
	$beginner->stop;
	$gate->queue($second, $want);
	$holders[0]->query('COMMIT');
	$gate->ok_comes(sub { $gate->state($first) eq 'running' }, 'a place goes to the one that came first');
	is($gate->state($second), 'waiting', 'the other one waits');
	$gate->continue_gate_worker;
	$gate->end_sessions;
}

# Each lone statement in the queue has its table's lock, which a stronger one waits for.
$gate->set(max_active_backends => 4, idle_after => 100);
{
	my $crowd = $gate->crowd(100, 'SELECT count(*) FROM news, generate_series(1, 8000);');
	my $locker = $gate->session;
	my $most = 0;
	$gate->await('SELECT waiting > 50 FROM pg_stat_admission_gate', 'a queue');
	$gate->value('SELECT pg_stat_admission_gate_reset()');
	foreach (1 .. 12)
	{
		$locker->start(q{BEGIN; SET LOCAL lock_timeout = '300ms'; LOCK TABLE news});
		until ($locker->done)
		{
			my $running = $gate->counter('running');
			$most = $running if $running > $most;
		}
		$locker->result;
		$locker->query('ROLLBACK');
	}
	cmp_ok($most, '<', 16, 'a stronger lock on the table of waiting statements does not open the gate');
	cmp_ok($gate->counter('stalls'), '<', 500, 'few of them enter above the limit');
	$gate->ok_stops($crowd);
}

# If all holders wait behind that lock, they do, one after the other; at once, not when the
# last resort would let the first of them in.
$gate->set(idle_after => -1);
{
	my @holders = map { $gate->holder } 1 .. 4;
	my @waiters = map { $gate->waiter('SELECT edition FROM news') } 1 .. 12;
	my $locker = $gate->session(session => { 'admission_gate.bypass' => 'on' });
	$_->query('SELECT 1') foreach @holders;
	$gate->value('SELECT pg_stat_admission_gate_reset()');
	my $start = time;
	$gate->stop_gate_worker;
	$locker->start('BEGIN; LOCK TABLE news; COMMIT');
	$gate->await_wait_event_type($locker, 'Lock');
	$_->start('SELECT edition FROM news; COMMIT') foreach @holders;
	$gate->await_wait_event_type($_, 'Lock') foreach @holders;
	$gate->continue_gate_worker;
	$_->result foreach (@holders, @waiters, $locker);
	cmp_ok(time - $start, '<', 30, 'waiting statements enter if all holders wait for them');
	cmp_ok($gate->counter('stalls'), '>', 0, 'above the limit');
}

$gate->finish;
