# Proves that with mode = observe nobody waits, that those that would have are counted,
# and that a reload switches between the modes at any time.

use strict;
use warnings;
use lib 'test/perl';
use GateTest;

my $gate = GateTest->new(
	'observe',
	mode => 'observe',
	max_active_backends => 1,
	max_connections => 150,
	idle_after => -1);

# Since the last time, would_queue has grown by so many, and nobody has queued.
my $would_queue = 0;

sub would_have_queued
{
	my ($n, $what) = @_;

	$would_queue += $n;
	is($gate->value('SELECT would_queue, queued, forced, rejections FROM pg_stat_admission_gate'),
		"$would_queue|0|0|0", "$what: would_queue + $n");
	return;
}

is($gate->value('SELECT mode, max_active FROM pg_stat_admission_gate'), 'observe|1', 'the mode holds from the start');

# What would have queued
{
	my ($one, $two, $three, $four) = map { $gate->session } 1 .. 4;

	$one->query('SELECT 1');
	would_have_queued(0, 'a statement that finds a slot free');
	$one->query('BEGIN');
	$gate->ok_runs($two, 'SELECT 1', 'above the limit, nobody waits');
	would_have_queued(1, 'a statement above the limit');
	$two->query('BEGIN');
	$gate->ok_runs($three, 'BEGIN', 'however far above');
	would_have_queued(2, 'two transactions above the limit');
	is($gate->gauges, '3|0', 'the number in use is above the limit');

	$gate->set(max_queue_length => 0);
	$gate->ok_runs($four, 'SELECT 1', 'nobody is refused either');
	would_have_queued(1, 'one that would have been refused counts as well');
	$gate->set(max_queue_length => -1);

	$two->query('COMMIT');
	$four->query('SELECT 1');
	would_have_queued(1, 'while the count is above the limit');
	$_->query('COMMIT') foreach ($one, $three);
	$four->query('SELECT 1');
	would_have_queued(0, 'when it is below');
	$gate->ok_quiet('after observing');

	# A transaction that may not wait would not have queued.
	$two->query($begins_with_bypass);
	$gate->value('SELECT pg_stat_admission_gate_reset()');
	$one->query('BEGIN');
	$two->query('SELECT 1');
	is($gate->counter('ARRAY[would_queue, forced]'), '{0,1}', 'forced admissions are counted as such');
}

# A session that would have queued has the holders looked at.
$gate->set(idle_after => 100);
{
	my $holder = $gate->holder;
	my $session = $gate->session;
	$gate->ok_comes(
		sub {
			$gate->value('SELECT pg_stat_admission_gate_reset()');
			$session->query('SELECT 1');
			return $gate->counter('would_queue') eq '0';
		},
		'beside an idle holder, a session would not have queued');
}
$gate->set(idle_after => -1);

# Switching
{
	$gate->set(mode => 'enforce');
	my $holder = $gate->holder;
	my @waiters = map { $gate->waiter('BEGIN') } 1 .. 5;
	$gate->set(mode => 'observe');
	$_->finish foreach @waiters;
	is($gate->gauges, '6|0', 'when the limit is no longer enforced, all that wait enter');

	$gate->set(mode => 'enforce');
	my $last = $gate->session;
	$gate->ok_queues($last, 'SELECT 1', 'when it is enforced again, new ones wait');
	$_->query('COMMIT') foreach @waiters;
	$gate->ok_waits($last, 'until the count is below the limit');
	$holder->query('COMMIT');
	is($last->finish, '1', 'and then enter');
}
$gate->ok_quiet('after switching');

$gate->ok_one_slot;
$gate->finish;
