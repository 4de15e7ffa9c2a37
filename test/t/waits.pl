# Proves that a wait can be told of once it is over: in the server log and in the
# histogram.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/../perl";
use GateTest;

my $gate = GateTest->new(
	'waits',
	max_active_backends => 1,
	handoff_after => 0,
	lend_after => 60_000);
my $node = $gate->node;

$gate->value('CREATE ROLE plain LOGIN');

# With a holder in the only slot, the session starts a statement and queues; then
# the code ends the wait.  Returns the result.
sub wait_that_ends_by
{
	my ($session, $sql, $code) = @_;

	my $holder = $gate->holder;
	$gate->queue($session, $sql);
	$code->($holder);
	my $result = $session->result;
	$holder->query('ROLLBACK');    # if it has not ended
	return $result;
}

# A wait that ends because its turn has come
sub wait_once
{
	my ($session, $sql) = @_;
	wait_that_ends_by($session, $sql // 'SELECT 1', sub { $_[0]->query('COMMIT') });
	return;
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
sub waits_logged_by
{
	my ($code) = @_;

	my $log = logged_by($code);
	my @ends;
	push @ends, $2 while $log =~ /$wait_line/g;
	return join "\n", @ends;
}

{
	my $session = $gate->session;
	is(waits_logged_by(sub { wait_once($session) }), '', 'by default, no wait is logged');

	$gate->set(log_min_wait => 3_600_000);
	is(waits_logged_by(sub { wait_once($session) }), '', 'a shorter wait than log_min_wait is not logged');

	$gate->set(log_min_wait => 0);
	is(waits_logged_by(sub { $session->query('SELECT 1') }),
		'', 'with log_min_wait = 0, who does not wait is not logged');
	my $begin = time;
	my $log = logged_by(sub { wait_once($session, 'SELECT 1 AS marked') });
	my $took = 1000 * (time - $begin);
	like($log, qr/$wait_line/, 'with log_min_wait = 0, a wait is logged');
	my ($waited, $end) = $log =~ $wait_line;
	is( $end,
		'admitted, pool "default", queue length 0 on arrival, position 1',
		'with its end, pool and place in the queue');
	$session->query('BEGIN');
	cmp_ok(abs($waited - $gate->state($session, 'wait_time')), '<', 0.001, 'and the time that the view has');
	cmp_ok($waited, '<=', $took, 'which is not more than it took');
	$session->query('COMMIT');
	my ($pid) = $log =~ /\[(\d+)\] client backend LOG:  admission wait/;
	is($pid, $session->pid, 'by the process that waited');
	like($log, qr/\[$pid\] client backend STATEMENT:  SELECT 1 AS marked\n/, 'its statement is added');

	$session->query('SET log_min_error_statement = fatal');
	$log = logged_by(sub { wait_once($session) });
	like($log, qr/$wait_line/, 'a wait is logged without its statement');
	unlike($log, qr/STATEMENT/, 'if log_min_error_statement says so');

	# All ends, and the second in the queue
	my $next = $gate->session;
	is( waits_logged_by(
			sub {
				wait_that_ends_by(
					$session,
					'SELECT 1',
					sub {
						$gate->queue($next, 'SELECT 1');
						$session->cancel;
						$session->result;
						$_[0]->query('COMMIT');
						$next->finish;
						$session->start('SELECT 1');
					});
			}),
		join(
			"\n",
			'canceled, pool "default", queue length 0 on arrival, position 1',
			'admitted, pool "default", queue length 1 on arrival, position 2'),
		'a wait that is cancelled, and one behind it');
	my $holder = $gate->holder;
	for my $timeout ([ 'admission_gate.queue_timeout', 'timed out' ], [ 'statement_timeout', 'canceled' ])
	{
		my ($setting, $how) = @$timeout;
		$session->query("SET $setting = '500ms'");
		like(waits_logged_by(sub { $session->start('SELECT 1')->result }), qr/^$how, /, "a wait that $setting ends");
		$session->query("RESET $setting");
	}
	$holder->query('ROLLBACK');
	my $waited_before = $gate->counter('total_wait_time');
	like(
		waits_logged_by(
			sub {
				wait_that_ends_by(
					$session,
					'SELECT 1',
					sub { $gate->value('SELECT pg_terminate_backend(' . $session->pid . ')'); $gate->await_waiting(0); }
				);
			}),
		qr/^canceled, /,
		'a wait that ends with the session');
	cmp_ok($gate->counter('total_wait_time'), '>', $waited_before, 'which counts in total_wait_time, too');

	$gate->value('ALTER ROLE plain SET admission_gate.log_min_wait = -1');
	my $plain = $gate->session(user => 'plain');
	is(waits_logged_by(sub { wait_once($plain) }), '', 'log_min_wait can be set for a role');
}

# What a wait changes for an application
{
	my $session = $gate->session;
	my $begun = $gate->value('SELECT clock_timestamp()');
	my $after;
	$session->query('CREATE TEMP TABLE arrived (at timestamptz)');
	wait_that_ends_by(
		$session,
		'INSERT INTO arrived VALUES (now())',
		sub { $after = $gate->value('SELECT clock_timestamp()'); $_[0]->query('COMMIT') });
	is($session->query("SELECT at BETWEEN '$begun' AND '$after' FROM arrived"), 't', 'now() is the time of arrival');

	# It has been looked up before the wait.
	$gate->value('CREATE FUNCTION seven() RETURNS int LANGUAGE sql AS $$ SELECT 7 $$');
	my $ddl = $gate->session(session => { 'admission_gate.bypass' => 'on' });
	my $call_while = sub {
		my @ddl = @_;
		return wait_that_ends_by($session, 'SELECT seven()',
			sub { $ddl->query($_) foreach @ddl; $_[0]->query('COMMIT') });
	};
	my $replaced = $call_while->('CREATE OR REPLACE FUNCTION seven() RETURNS int LANGUAGE sql AS $$ SELECT 8 $$');
	ok(!$replaced->{error}, 'a function can be replaced during the wait');
	my $dropped =
	  $call_while->('DROP FUNCTION seven()', 'CREATE FUNCTION seven() RETURNS int LANGUAGE sql AS $$ SELECT 9 $$');
	like($dropped->{error}{C}, qr/^(?:XX000|42704|42883)$/, 'one that is dropped and created anew is not found');
	is($session->query('SELECT seven()'), '9', 'the statement succeeds when it is repeated');

}

# However they ended, and without a slot as well
is( $gate->value(
		'SELECT queued = (SELECT sum(waits) FROM pg_stat_admission_gate_histogram) FROM pg_stat_admission_gate'),
	't',
	'every wait is in the histogram');

$gate->finish;
