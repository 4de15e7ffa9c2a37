# Proves who goes first in a queue: of those that may hold locks, whoever came first.

use strict;
use warnings;
use lib 'test/perl';
use GateTest;

my $gate = GateTest->new(
	'queue_order',
	max_active_backends => 60,
	handoff_after => 500,
	lend_after => 30_000,
	max_connections => 80);

$gate->value('CREATE TABLE sale (id int PRIMARY KEY, n int) WITH (fillfactor = 20)', 'INSERT INTO sale VALUES (1, 0)');

my $want = 'UPDATE sale SET n = n + 1 WHERE id = 1';

# Of two that queue in the middle of their transactions, the first stays the first, also if it
# had to go behind one that holds no locks, for that had waited for handoff_after.
{
	my ($beginner, $first, $second) = map { $gate->session } 1 .. 3;
	my $crowd = $gate->crowd(24, "BEGIN; SELECT 1;\n$want RETURNING pg_sleep(0.01);\nCOMMIT;");
	$gate->ok_comes('bool_or(max_active > 0 AND waiting > 3) FROM pg_stat_admission_gate_hot_spots', 'a row is hot');

	# At its next BEGIN, it queues for what it always wanted.
	$beginner->query('BEGIN', $want, 'COMMIT') foreach 1 .. 8;
	$_->query('BEGIN', 'SELECT 1') foreach ($first, $second);

	# From here on, the limit stays as it is.
	$gate->stop_gate_worker;
	$gate->stop_crowd($crowd);
	$gate->await('SELECT waiting = 0 AND running = 2 FROM pg_stat_admission_gate', 'the end of the crowd');
	my @holders;
	$gate->await(
		sub {
			push @holders, $gate->session;
			$holders[-1]->query('BEGIN', 'SELECT 1');
			$holders[-1]->start($want);
			$gate->await_true(
				sub { @holders == 1 ? $holders[0]->done : $gate->activity($holders[-1], 'wait_event_type') =~ /Lock|Extension/ },
				'an answer or a wait');
			return $gate->state($holders[-1]) eq 'waiting';
		},
		'all places in use');
	(pop @holders)->stop;
	$gate->queue($beginner, 'BEGIN');
	$gate->await("SELECT clock_timestamp() > state_change + interval '0.5 s' FROM pg_stat_admission_gate_backends
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

$gate->finish;
