# Proves that a wait can be told of once it is over: in the server log and in the
# histogram.

use strict;
use warnings;
use lib 'test/perl';
use GateTest;

my $gate = GateTest->new('waits', max_active_backends => 1, idle_after => -1);
my $node = $gate->node;

# With a holder in the only slot, the session starts a statement and queues; then the code ends
# the wait, if not the holder's COMMIT.  Returns the result.
sub wait_that_ends_by
{
	my ($session, $sql, $code) = @_;

	my $holder = $gate->holder;
	$gate->queue($session, $sql);
	$code->() if $code;
	$holder->query('COMMIT');
	return $session->result;
}

# log_min_wait
my $wait_line = qr/LOG:  admission wait ended after (\d+\.\d{3}) ms: (.*)/;

# What the code adds to the server log
sub logged_by
{
	my ($code) = @_;

	my $before = -s $node->logfile;
	$code->();
	return slurp_file($node->logfile, $before);
}

# How the waits of the code end, by the server log
sub ok_logged
{
	my ($code, $expected, $what) = @_;
	my %ends = logged_by($code) =~ /$wait_line/g;
	return is(join("\n", sort values %ends), $expected, $what);
}

my $session = $gate->session;
my $wait = sub { wait_that_ends_by($session, 'SELECT 1') };
ok_logged($wait, '', 'by default, no wait is logged');
$gate->set(log_min_wait => 3_600_000);
ok_logged($wait, '', 'a shorter wait than log_min_wait is not logged');
$gate->set(log_min_wait => 0);
ok_logged(sub { $session->query('SELECT 1') },
	'', 'with log_min_wait = 0, a statement that does not wait is not logged');
{
	my $begin = time;
	my $log = logged_by(sub { wait_that_ends_by($session, 'SELECT 1 AS marked') });
	my $took = 1000 * (time - $begin);
	my ($pid, $waited, $end) = $log =~ /\[(\d+)\] client backend $wait_line/;
	is( $end,
		'admitted, pool "default", queue length 0 on arrival',
		'with log_min_wait = 0, a wait is logged with its end, pool and the length of the queue');
	is($pid, $session->pid, 'by the process that waited');
	like($log, qr/\[$pid\] client backend STATEMENT:  SELECT 1 AS marked\n/, 'its statement is added');
	cmp_ok($waited, '<=', $took, 'and the time, which is not more than it took');
	$session->query('BEGIN');
	cmp_ok(abs($waited - $gate->state($session, 'wait_time')), '<', 0.001, 'but what the view has');
	$session->query('COMMIT', 'SET log_min_error_statement = fatal');
	unlike(logged_by($wait), qr/STATEMENT/, 'without its statement, if log_min_error_statement says so');
}

# All ends, and the second in the queue
my $canceled = 'canceled, pool "default", queue length 0 on arrival';
my $next = $gate->session;
my $cancel = sub { $gate->queue($next, 'SELECT 1'); $session->cancel; $gate->await_waiting(1) };
ok_logged(
	sub { wait_that_ends_by($session, 'SELECT 1', $cancel); $next->finish },
	'admitted, pool "default", queue length 1 on arrival' . "\n$canceled",
	'a wait that is cancelled, and one behind it');
for ([ 'admission_gate.queue_timeout', $canceled =~ s/canceled/timed out/r ], [ 'statement_timeout', $canceled ])
{
	my ($setting, $end) = @$_;
	my $holder = $gate->holder;
	my $impatient = $gate->session(session => { $setting => '500ms' });
	ok_logged(sub { $impatient->start('SELECT 1')->result }, $end, "a wait that $setting ends");
	$holder->query('COMMIT');    # else the next one may have to wait for its end
}
my $waited_before = $gate->counter('total_wait_time');
my $terminate = sub { $gate->value('SELECT pg_terminate_backend(' . $session->pid . ')'); $gate->await_waiting(0) };
ok_logged(sub { wait_that_ends_by($session, 'SELECT 1', $terminate) }, $canceled, 'a wait that ends with the session');
cmp_ok($gate->counter('total_wait_time'), '>', $waited_before, 'which counts in total_wait_time, too');

$gate->value('CREATE ROLE plain LOGIN', 'ALTER ROLE plain SET admission_gate.log_min_wait = -1');
$session = $gate->session(user => 'plain');
ok_logged($wait, '', 'log_min_wait can be set for a role');

# What a wait changes for an application
{
	my $begun = $gate->value('SELECT clock_timestamp()');
	my $after;
	$session->query('CREATE TEMP TABLE arrived (at timestamptz)');
	wait_that_ends_by(
		$session,
		'INSERT INTO arrived VALUES (now())',
		sub { $after = $gate->value('SELECT clock_timestamp()') });
	is($session->query("SELECT at BETWEEN '$begun' AND '$after' FROM arrived"), 't', 'now() is the time of arrival');
}

# However they ended, and without a slot as well
is( $gate->value(
		'SELECT queued = (SELECT sum(waits) FROM pg_stat_admission_gate_histogram) FROM pg_stat_admission_gate'),
	't',
	'every wait is in the histogram');
$gate->finish;
