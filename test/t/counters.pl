# Proves that every figure of the views means what it says: each is followed through a known
# sequence of events, and the errors tell the same figures; and that a wait can be told of once
# it is over, in the server log and in the histogram.

use strict;
use warnings;
use lib 'test/perl';
use File::Copy qw(copy);
use GateTest;

my $gate = GateTest->new('counters', max_active_backends => 1, idle_after => -1);

my @totals = qw(admitted completed failed overdue queued would_queue barged forced timeouts
  rejections cancels);

# What the totals should be by now
my %expected;

sub reset_totals
{
	$gate->value('SELECT pg_stat_admission_gate_reset()');
	%expected = map { $_ => 0 } @totals;
	return;
}

# Since the last time, these totals have grown by so many and no other has; and
# every admission has one end.
sub grew
{
	my ($what, %growth) = @_;

	$expected{$_} += $growth{$_} foreach keys %growth;
	my $columns = join ', ', map { "'$_=' || $_" } @totals;
	is( $gate->value("SELECT concat_ws(' ', $columns) FROM pg_stat_admission_gate"),
		join(' ', map { "$_=$expected{$_}" } @totals),
		"$what: " . join(', ', map { "$_ + $growth{$_}" } sort keys %growth));
	return $gate->ok_adds_up($what);
}

sub gauges_are { return is($gate->gauges, $_[0], "$_[1]: running and waiting"); }

# The histogram has these waits (ms), each in its range, and no others.
sub histogram_has
{
	my ($what, @waits) = @_;
	my $expected = join ', ', @waits;

	return is(
		$gate->value(
			"SELECT lower_bound, waits, count(wait) FROM pg_stat_admission_gate_histogram
			LEFT JOIN unnest(ARRAY[$expected]::float8[]) wait ON wait >= lower_bound AND wait < upper_bound
			GROUP BY lower_bound, waits HAVING waits <> count(wait)"),
		'',
		"the histogram has $what");
}

# A time-out ends a statement that waits for a table, in a session that never had a slot: SET
# needs none.
sub ends_before_its_slot
{
	my $new = $gate->session;
	$new->query("SET statement_timeout = '50ms'");
	return is($new->start('SELECT FROM skew')->sqlstate, '57014', 'a time-out before the session had a slot');
}

# state_change of a session is after this test began.
sub shown_since
{
	my ($session, $what) = @_;
	return is($gate->state($session, 'state_change BETWEEN (SELECT t FROM times) AND clock_timestamp()'), 't', $what);
}

my ($one, $two, $three) = map { $gate->session } 1 .. 3;

# Reset
$gate->value('CREATE TABLE times AS SELECT clock_timestamp() AS t', 'CREATE TABLE skew (n int)');
reset_totals();
is($gate->value('SELECT stats_reset BETWEEN t AND clock_timestamp() FROM pg_stat_admission_gate, times'),
	't', 'stats_reset is the time of the reset');
grew('reset');

my $skew = 'BEGIN ISOLATION LEVEL SERIALIZABLE; INSERT INTO skew SELECT count(*) FROM skew';
my $burn = 'DO $$ BEGIN LOOP END LOOP; END $$';
my $burn_in_transaction =
  sub { $two->query('SET transaction_timeout = 50'); $two->start($burn)->result; $two = $gate->session };
# admitted, completed, failed: what runs, and how many are running afterwards
for (
	[ 'SELECT 1', 0, admitted => 1, completed => 1 ],
	[ 'SELECT 1; SELECT 2', 0, admitted => 1, completed => 1 ],
	[ 'SELECT 1/0', 0, admitted => 1, failed => 1 ],
	[ 'BEGIN', 1, admitted => 1 ],
	[ 'SELECT 1; SAVEPOINT a; ROLLBACK TO a', 1 ],
	[ 'COMMIT', 0, completed => 1 ],
	[ 'BEGIN; SELECT 1; ROLLBACK', 0, admitted => 1, failed => 1 ],
	[ 'BEGIN; SELECT 1/0', 0, admitted => 1, failed => 1 ],
	[ 'ROLLBACK', 0 ],
	# These fail when the slot has been released.
	[ "BEGIN; SELECT 1; NOTIFY ch; PREPARE TRANSACTION 'p'", 0, admitted => 1, failed => 1 ],
	[ $skew, 1, admitted => 1 ],
	# Another session, which passes the gate, commits what does not fit what the first has read.
	[ sub { $gate->value("$skew; COMMIT") }, 1 ],
	[ 'COMMIT', 0, failed => 1 ],
	[ 'SET work_mem = 1024', 0 ],
	# Ended by a time-out; transaction_timeout, which is new in PostgreSQL 17, ends the session.
	[ 'SET statement_timeout = 500', 0 ],
	[ $burn, 0, admitted => 1, failed => 1, overdue => 1 ],
	# On its way to the gate
	[ sub { $gate->value('BEGIN; LOCK TABLE skew') }, 0 ],
	[ 'SELECT FROM skew', 0, overdue => 1 ],
	[ \&ends_before_its_slot, 0 ],
	[ sub { $gate->value('COMMIT') }, 0 ],
	[ 'BEGIN; SAVEPOINT a', 1, admitted => 1 ],
	[ $burn, 1, overdue => 1 ],
	[ 'ROLLBACK', 0, failed => 1 ],
	[ 'SET statement_timeout = 0', 0 ],
	$gate->value('SHOW server_version_num') < 170000
	? ()
	: [ $burn_in_transaction, 0, admitted => 1, failed => 1, overdue => 1 ])
{
	my ($sql, $running, %growth) = @$_;
	ref $sql ? $sql->() : $one->start($sql)->result;
	grew($sql, %growth);
	gauges_are("$running|0", $sql);
}

# queued, total_wait_time, max_wait_time

# Lets a session wait for so many ms.  Returns how long it was at least and at most.
sub known_wait
{
	my ($ms) = @_;

	$one->query('BEGIN');
	my $longest = time;
	$gate->queue($two, 'SELECT 1');
	my $shortest = time;
	grew('a statement that waits', admitted => 1, queued => 1);
	gauges_are('1|1', 'a statement that waits');
	usleep(1000 * $ms);
	cmp_ok($gate->state($two, 'wait_time'), '>=', $ms, 'its wait is shown while it lasts');
	shown_since($two, 'and when it began');
	$shortest = time - $shortest;
	$one->query('COMMIT');
	$two->finish;
	$longest = time - $longest;
	grew('when it was let in', admitted => 1, completed => 2);
	return (1000 * $shortest, 1000 * $longest);
}

{
	my @totals = (0);
	for my $ms (300, 100)
	{
		my ($at_least, $at_most) = known_wait($ms);
		push @totals, $gate->counter('total_wait_time');
		my $waited = $totals[-1] - $totals[-2];
		cmp_ok($waited, '>=', $at_least, 'total_wait_time is not less than what was waited');
		cmp_ok($waited, '<=', $at_most, 'total_wait_time is not more than what was waited');
	}
	my @waits = ($totals[1], $totals[2] - $totals[1]);
	histogram_has('both waits', @waits);
	my ($longest) = sort { $b <=> $a } @waits;
	cmp_ok(abs($gate->counter('max_wait_time') - $longest), '<', 0.001, 'max_wait_time is that of the longest wait');

	$two->query('BEGIN');
	cmp_ok(abs($gate->state($two, 'wait_time') - $waits[1]), '<', 0.001, 'a running backend shows its last wait');
	shown_since($two, 'and since when it runs');
	is($gate->value('SELECT count(*) FROM pg_stat_admission_gate_backends'), '1', 'idle sessions are not shown');
	$two->query('COMMIT');

	reset_totals();
	is($gate->counter('ARRAY[total_wait_time, max_wait_time]'), '{0,0}', 'a reset forgets the waits');
	histogram_has('none after a reset');
	known_wait(10);
	is($gate->counter('max_wait_time <= total_wait_time'), 't', 'max_wait_time counts from the reset');

	# A reset does not unbalance what goes on.
	$one->query('BEGIN');
	$gate->queue($two, 'SELECT 1');
	reset_totals();
	grew('a reset while a backend runs and another waits: the running one counts', admitted => 1);
	$one->query('COMMIT');
	$two->finish;
	grew('their ends', admitted => 1, completed => 2);
}

# The statement fails with this error, whose HINT names that setting.
sub ok_error
{
	my ($session, $sqlstate, $message, $detail, $setting) = @_;

	my $error = $session->start('SELECT 1')->result->{error};
	is("$error->{C} $error->{M}", "$sqlstate $message", "$setting: SQLSTATE and message");
	like($error->{D}, $detail, 'DETAIL has the figures');
	return like($error->{H}, qr/admission_gate\.$setting or admission_gate\.max_active_backends/,
		'HINT has the settings');
}

# timeouts
{
	my $waited = $gate->counter('total_wait_time');
	$one->query('BEGIN');
	$two->query("SET admission_gate.queue_timeout = '100ms'");
	ok_error(
		$two, '53000',
		'canceling statement due to admission queue timeout',
		qr/^The limit of the server is 1 at a time \(1 in use, 0 waiting\); this backend has waited for \d{3,} ms\.$/,
		'queue_timeout');
	cmp_ok($gate->counter("total_wait_time - $waited"), '>=', 99, 'waits in vain count in total_wait_time');
	$one->query('COMMIT');
	grew('queue_timeout, and COMMIT', admitted => 1, queued => 1, timeouts => 1, completed => 1);
	$two->query('RESET admission_gate.queue_timeout');
}

# rejections
{
	$gate->set(max_queue_length => 1);
	$one->query('BEGIN');
	$gate->queue($two, 'SELECT 1');
	ok_error(
		$three, '53400',
		'too many backends are waiting for admission',
		qr/^The limit of the server is 1 at a time \(1 in use, 1 waiting\); this backend has waited for 0 ms\.$/,
		'max_queue_length');
	grew('a full queue', admitted => 1, queued => 1, rejections => 1);
	$one->query('COMMIT');
	$two->finish;
	grew('the one in the queue', admitted => 1, completed => 2);

	$gate->set(max_queue_length => -1);
}

# cancels
{
	$one->query('BEGIN');
	$gate->queue($two, 'SELECT 1');
	$two->stop;
	my $other = $gate->waiter('SELECT 1');
	$gate->value('SELECT pg_terminate_backend(' . $other->pid . ')');
	$gate->session(session => { statement_timeout => 50 })->start('SELECT 1')->result;
	$gate->await_waiting(0);
	$one->query('COMMIT');
	grew('three ends in the queue', admitted => 1, completed => 1, queued => 3, cancels => 3);

	# A cancel of what runs is a failure of that, in vain.
	$one->start('SELECT pg_sleep(1000)');
	$gate->await_wait_event_type($one, 'Timeout');
	$one->stop;
	grew('a cancel of what runs', admitted => 1, failed => 1, overdue => 1);
	my $quitter = $gate->session(session => { client_connection_check_interval => 10 });
	$quitter->start('SELECT pg_sleep(1000)');
	$gate->await_wait_event_type($quitter, 'Timeout');
	$quitter->hang_up;
	$gate->await('SELECT running = 0 FROM pg_stat_admission_gate');
	grew('a client that hangs up', admitted => 1, failed => 1, overdue => 1);

	$gate->holder->quit;
	$gate->await("SELECT running = 0 AND admitted = completed + failed FROM pg_stat_admission_gate");
	grew('a session that quits in its transaction', admitted => 1, failed => 1);
	$gate->value('SELECT pg_terminate_backend(' . $gate->worker->pid . ')');
	$gate->await("SELECT running = 0 AND admitted = completed + failed FROM pg_stat_admission_gate");
	grew('a session that is terminated in a command', admitted => 1, failed => 1);
}

# barged.  The first in the queue is stopped, and cannot take the slot that it is called
# for.  Then another one takes it, unless the first has waited for 20 ms.
{
	my ($head, $other) = map { $gate->session } 1 .. 2;
	$gate->call_in_vain($head);
	reset_totals();
	$gate->ok_runs($other, 'SELECT 2', 'the first to come takes a free slot');
	kill CONT => $head->pid;
	$head->result;
	grew('it and the first in the queue', admitted => 2, completed => 2, barged => 1);

	$one->query('BEGIN');
	stop_late($head);
	$one->query('COMMIT');
	$gate->ok_queues($other, 'SELECT 2', 'the first in the queue gets the next slot when it has waited for 20 ms');
	kill CONT => $head->pid;
	$_->result foreach ($head, $other);
	grew('two that queue', admitted => 3, completed => 3, queued => 2);
}

# These wait in the queue, for long enough that two of them may be handed slots at a time, and
# are stopped.
sub stop_late
{
	my (@sessions) = @_;

	$gate->queue($_, 'SELECT 1') foreach @sessions;
	$gate->await_wait($sessions[-1], 40);
	$gate->stop_waiter($_) foreach @sessions;
	return;
}

# A slot that is handed over lies idle until its heir is on a CPU.  So it is half of
# them at most, here one; but an heir that never comes is not waited for.
{
	$gate->set(max_active_backends => 2);
	my ($heir, $next, $other) = map { $gate->session } 1 .. 3;
	my $go_on = sub {
		kill CONT => $_->pid foreach ($heir, $next);
		$_->result foreach ($heir, $next);
	};
	$gate->ok_comes(
		sub {
			$_->query('BEGIN') foreach ($one, $two);
			stop_late($heir, $next);
			# If the second one is late, its slot is handed over, too.
			$_->start('COMMIT') foreach ($one, $two);
			$_->result foreach ($one, $two);
			my $is_free = $gate->gauges eq '1|1';
			is($other->query('SELECT 2'), '2', 'another one takes it') if $is_free;
			$go_on->();
			return $is_free;
		},
		'while a slot is on its way to its heir, the others are free to all');

	reset_totals();
	$_->query('BEGIN') foreach ($one, $two);
	stop_late($heir, $next);
	$one->query('COMMIT');
	$gate->await("SELECT now() - state_change > interval '20 ms' FROM pg_stat_admission_gate_backends WHERE pid = "
		  . $heir->pid);
	$two->query('COMMIT');
	gauges_are('2|0', 'then the next in the queue is handed one, although the heir has not come');
	$go_on->();
	grew('one heir after the other', admitted => 4, completed => 4, queued => 2);

	# Two at a time are handed over when the next one has waited for twice as long.
	$gate->set(max_active_backends => 4);
	my @holders = map { $gate->holder } 1 .. 4;
	stop_late($heir, $next);
	$_->query('COMMIT') foreach @holders[ 0, 1 ];
	gauges_are('4|0', 'one that has waited for twice as long is handed a slot beside the first');
	$go_on->();
	$_->query('COMMIT') foreach @holders[ 2, 3 ];
	grew('two heirs at a time', admitted => 6, completed => 6, queued => 2);
	$gate->set(max_active_backends => 1);
}

# What is told of a wait once it is over
#
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

	my $before = -s $gate->node->logfile;
	$code->();
	return slurp_file($gate->node->logfile, $before);
}

# How the waits of the code end, by the server log
sub ok_logged
{
	my ($code, $expected, $what) = @_;
	my %ends = logged_by($code) =~ /$wait_line/g;
	return is(join("\n", sort values %ends), $expected, $what);
}

reset_totals();
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

$gate->ok_quiet('at the end');

# Without preloading
my $not_preloaded = 'must be loaded via "shared_preload_libraries"';

# The extension's functions raise an error that matches.
sub ok_refuse
{
	my ($session, $pattern) = @_;
	for my $source ((map { "pg_stat_admission_gate$_" } '', '_backends', '_histogram', '_hot_spots', '_worker'),
		'pg_stat_admission_gate_reset()')
	{
		my $error = $session->start("SELECT * FROM $source")->result->{error};
		like(join(' ', map { $error->{$_} // '' } qw(C M D H)), $pattern, "$source says what to do");
	}
	return;
}

$gate->configure(shared_preload_libraries => '');
$gate->node->restart;
$session = $gate->session;
is($session->query("LOAD 'admission_gate'"), '', 'a library that was not preloaded loads quietly');
ok_refuse($session, qr/^55000 .*$not_preloaded.* Add it to shared_preload_libraries/);
$session->query('DROP EXTENSION admission_gate');
like($gate->session->start('CREATE EXTENSION admission_gate')->result->{notices}[0],
	qr/$not_preloaded/, 'CREATE EXTENSION warns of it');

# Another copy than that of the extension's functions preloaded
my $copy = PostgreSQL::Test::Utils::tempdir_short() . '/a_copy.so';
copy($gate->node->config_data('--pkglibdir') . '/admission_gate.so', $copy) or die "cannot copy the library: $!";
$gate->configure(shared_preload_libraries => $copy);
$gate->restart('fast');
ok($gate->await_restart, 'preloaded by a path, the library lets the server start');
$gate->ok_comes(q{count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'admission_gate worker'},
	'and has its worker');
ok_refuse($gate->session, qr/^55000 .*$not_preloaded.* another copy.* without a path/);
$gate->node->stop;
done_testing();
