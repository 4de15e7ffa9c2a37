# Proves that with deadline_shedding a statement is refused at once if it would
# time out in the queue, and only then.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use GateTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $gate = GateTest->new(
	'deadline_shedding',
	max_active_backends => 1,
	handoff_after => 0,
	lend_after => 60_000);

my $hurried = $gate->session(
	session => {
		'admission_gate.deadline_shedding' => 'on',
		'statement_timeout' => '400ms'
	});

# Lets a session wait for so many ms at least, as the first in the queue.
sub wait_first
{
	my ($ms) = @_;

	my $holder = $gate->holder;
	my $waiter = $gate->session;
	$waiter->start('SELECT 1');
	$gate->await_queued($waiter);
	$gate->await("SELECT wait_time > $ms FROM pg_stat_admission_gate_backends WHERE pid = " . $waiter->pid);
	$holder->query('COMMIT');
	$waiter->finish;
	$_->quit foreach ($holder, $waiter);
	return;
}

# With that many in the queue, what becomes of the hurried session's statement:
# its SQLSTATE, or "waits"
sub hurried_behind
{
	my ($n) = @_;

	my $holder = $gate->holder;
	my @waiters = map { $gate->session } 1 .. $n;
	$_->start('SELECT 1') foreach @waiters;
	$gate->await_waiting($n);
	my $result = $hurried->start('SELECT 1')->result;
	$holder->query('COMMIT');
	$_->finish foreach @waiters;
	$_->quit foreach ($holder, @waiters);
	return $result->{error};
}

is(hurried_behind(1)->{C}, '57014', 'while nothing is known of the queue, a statement waits');

# One place takes 300 ms or more from now on, so two will take longer than 400 ms.
wait_first(300);
$gate->value('SELECT pg_stat_admission_gate_reset()');
my $error = hurried_behind(1);
is($error->{C}, '53400', 'a statement that would time out is refused');
is($error->{M}, 'statement would time out while waiting for admission', 'and told so');
my ($others, $expected, $left) = $error->{D} =~
  /^With (\d+) other backend waiting, its wait is expected to take (\d+) ms, but statement_timeout leaves (\d+) ms\.$/;
is($others, '1', 'DETAIL says how many wait');
cmp_ok($expected, '>', $left, 'and that the wait would be too long');
cmp_ok($left, '<=', 400, 'for what statement_timeout leaves');
like($error->{H}, qr/statement_timeout or admission_gate\.max_active_backends/, 'HINT has the settings');
is($gate->value('SELECT rejections, cancels FROM pg_stat_admission_gate'), '1|0', 'it is counted as a rejection');

# Who is not refused.  The waits teach a shorter time per place: teach it again.
wait_first(300) for (1 .. 3);
$hurried->query("SET statement_timeout = '100ms'");
is(hurried_behind(0)->{C}, '57014', 'the first in the queue is not refused');
is($gate->counter('rejections'), '1', 'nor counted as if it were');
$hurried->query('RESET statement_timeout');
wait_first(300);
$hurried->query('SET admission_gate.deadline_shedding = off');
is(hurried_behind(1)->{C}, '57014', 'without deadline_shedding, the statement waits in vain');
$hurried->query('RESET admission_gate.deadline_shedding');

wait_first(300) for (1 .. 3);
{
	my $holder = $gate->holder;
	my $waiter = $gate->session;
	$waiter->start('SELECT 1');
	$gate->await_queued($waiter);
	for my $timeout ('1h', '0')
	{
		$hurried->query("SET statement_timeout = '$timeout'");
		$hurried->start('SELECT 1');
		$gate->ok_waits($hurried, "with statement_timeout = $timeout, the statement waits");
		$hurried->cancel;
		$hurried->result;
	}
	$hurried->query('RESET statement_timeout');
	is($hurried->start('SELECT 1')->sqlstate, '53400', 'as the others do not');
	$holder->query('COMMIT');
	$waiter->finish;
	$_->quit foreach ($holder, $waiter);
}

# Short waits teach that the queue moves fast again.
wait_first(0) for (1 .. 20);
is(hurried_behind(1)->{C}, '57014', 'when the queue moves fast, a statement waits');

# Nothing is refused while the limit is only observed.
wait_first(300) for (1 .. 3);
$gate->set(mode => 'observe');
is(hurried_behind(0), undef, 'while the limit is only observed, nothing is refused');

$hurried->quit;
$gate->set(mode => 'enforce');
$gate->ok_quiet('at the end');
$gate->ok_adds_up('at the end');
$gate->node->stop;

done_testing();
