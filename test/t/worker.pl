# Proves what the background worker is seen to do, that it costs next to nothing while
# there is nothing to do, and that slots are handed on and nobody waits for ever while it
# is stopped or missing; and that hot spots are remembered once they have ended.

use strict;
use warnings;
use lib 'test/perl';
use GateTest;

my $gate = GateTest->new(
	'worker',
	max_active_backends => 4,
	idle_after => 100,
	log_statement => 'none',
	deadlock_timeout => '100ms');
$gate->value('CREATE TABLE sale AS SELECT id FROM generate_series(1, 3) id');

# What the view says of the worker
sub of_worker
{
	my ($what, $server) = @_;
	return ($server // $gate)->value("SELECT $what FROM pg_stat_admission_gate_worker");
}

sub ok_comes_to_worker
{
	my ($condition, $what) = @_;
	return $gate->ok_comes("$condition FROM pg_stat_admission_gate_worker", $what);
}

# The samples that it takes per second while the code runs, or else nobody does anything
sub samples_per_second
{
	my ($code) = @_;
	my ($samples, $start) = split /\|/, of_worker(q{samples, extract('epoch' FROM clock_timestamp())});
	$code ? $code->() : sleep 3;
	return of_worker("(samples - $samples) / (extract('epoch' FROM clock_timestamp()) - $start)");
}

# How often that process has gone to sleep; undef if the kernel does not tell.
sub sleeps
{
	my $file = "/proc/$_[0]/status";
	return if !-r $file;
	return (slurp_file($file) =~ /^voluntary_ctxt_switches:\s*(\d+)/m)[0];
}

# Behind an idle transaction that holds the slot, two sessions begin theirs.  Returns the
# holder and these.
sub sessions_behind_holder
{
	my ($server) = @_;
	my ($holder, @others) = map { $server->session } 0 .. 2;
	$holder->query('BEGIN');
	$server->queue($_, 'BEGIN') foreach @others;
	return ($holder, @others);
}

# The next one has the slot as soon as it is free.  If the machine is so slow that this
# takes a second, the waiter may have come in before.
sub ok_handed_on
{
	my ($server, $when) = @_;
	return $server->ok_comes(
		sub {
			my $stalls = $server->counter('stalls');
			my ($holder, @others) = sessions_behind_holder($server);
			foreach my $next (@others)
			{
				$holder->query('COMMIT');
				$next->finish;
				$holder = $next;
			}
			$holder->query('COMMIT');
			return $server->counter('stalls') == $stalls;
		},
		"$when, a slot is handed on when it is given back");
}

# Nobody looks who is at work, and nobody has to wait for ever.
sub ok_enter_after_a_second
{
	my ($server, $when) = @_;
	my $stalls = $server->counter('stalls');
	my ($holder, @others) = sessions_behind_holder($server);
	is(join(',', map { $_->sqlstate } @others), '00000,00000', "$when, those behind an idle transaction are let in");
	cmp_ok($server->state($_, 'wait_time'), '>', 900, 'after a second') foreach @others;
	my $pids = join ', ', map { $_->pid } @others;
	is( $server->value(
			"SELECT max(state_change) - min(state_change) > '0.9 s' FROM pg_stat_admission_gate_backends
			WHERE pid IN ($pids)"),
		't',
		'one per second');
	my $late = q{SELECT coalesce(clock_timestamp() - last_sample > '5 s', true) FROM pg_stat_admission_gate_worker};
	is($server->value($late), 't', 'without a sample for five');
	is($server->gauges, '3|0', 'above the limit');
	is($server->counter("stalls - $stalls"), '2', 'which counts as a stall');
	$_->query('COMMIT') foreach ($holder, @others);
	return $server->ok_quiet("$when, afterwards");
}

# The limit must be 1.
sub ok_looks_at_holder
{
	my ($when) = @_;
	my $stalls = $gate->counter('stalls');
	my $holder = $gate->holder;
	is($gate->session->query('SELECT 1'), '1', "$when, a session comes in beside an idle transaction");
	is($gate->counter('stalls'), $stalls, 'because that is not at work');
	return $holder->query('COMMIT');
}

# At work, and at rest
is(of_worker('count(*)'), '1', 'there is one worker');
is(of_worker('started BETWEEN pg_postmaster_start_time() AND now()'), 't', 'it has started with the server');
is( $gate->value('SELECT backend_type, datname FROM pg_stat_activity JOIN pg_stat_admission_gate_worker USING (pid)'),
	'admission_gate worker|',
	'pg_stat_activity shows it, in no database');

for my $limit (-1, 4)
{
	$gate->set(max_active_backends => $limit);
	my $begin = $gate->value('SELECT clock_timestamp()');
	my $rate = samples_per_second();
	cmp_ok($rate, '>', 0, "with max_active_backends = $limit, it samples an idle server");
	cmp_ok($rate, '<', 4, 'but seldom');
	$rate = samples_per_second(sub { $gate->session->query('SELECT 1') foreach 1 .. 200 });
	cmp_ok($rate, '<', 120, 'and not for each new connection');
	is(of_worker("last_sample BETWEEN '$begin' AND clock_timestamp()"), 't', 'the last time just now');
	is(of_worker('sample_time > 0'), 't', 'which takes time');
}

$gate->set(max_active_backends => 1, idle_after => -1);
{
	my $holder = $gate->holder;
	my $waiter = $gate->waiter('BEGIN');
	cmp_ok(samples_per_second(), '>', 5, 'while somebody waits, it samples often');
	is($gate->state($waiter), 'waiting', 'and nobody is let in that has not to be');
	$holder->query('COMMIT');
	$waiter->finish;
	$waiter->query('COMMIT');
}
$gate->ok_quiet('while the worker samples');

$gate->set(max_active_backends => 0);
{
	my $pid = of_worker('pid');
	my $samples = of_worker('samples');
	my $session = $gate->session;
	my $is_left_alone = sub {
		my $sleeps = sleeps($pid) // return 1;
		$session->query('BEGIN; SELECT count(*) FROM sale; COMMIT') foreach 1 .. 100;
		sleep 1;
		return sleeps($pid) == $sleeps;
	};
	$gate->ok_comes($is_left_alone, 'while the gate is off, nobody wakes the worker');
	is(of_worker('samples'), $samples, 'nor does it sample');
}
$gate->set(max_active_backends => 1, idle_after => 100);
ok_looks_at_holder('with the gate on again');

# An interrupt, such as one from a terminal, is not for it.
{
	my ($pid, $samples) = split /\|/, of_worker('pid, samples');
	kill INT => $pid;
	ok_comes_to_worker("samples > $samples + 2", 'after SIGINT, the worker samples');
	is(of_worker('pid'), $pid, 'and is the same');
}

# Terminated: what is set while there is none, nobody publishes but the next one.
for my $limit (2, 1)
{
	my ($pid, $begin) = split /\|/, of_worker('pid, clock_timestamp()');
	is($gate->value("SELECT pg_terminate_backend($pid)"), 't', 'the worker can be terminated');
	$gate->await("SELECT pid IS DISTINCT FROM $pid FROM pg_stat_admission_gate_worker");
	$gate->set_soon(max_active_backends => $limit);
	ok_comes_to_worker("pid <> $pid AND started > '$begin' AND samples > 0", 'it comes back');
	$gate->ok_comes("max_active = $limit FROM pg_stat_admission_gate",
		"max_active_backends = $limit, set meanwhile, holds then");
}
$gate->set(idle_after => -1);
ok_handed_on($gate, 'after the worker has been terminated');
$gate->set(idle_after => 100);
ok_looks_at_holder('after the worker has been terminated');
$gate->ok_quiet('after the worker has been terminated');

# Stopped
{
	my $pid = $gate->stop_gate_worker;
	my $samples = of_worker('samples');

	ok_handed_on($gate, 'while the worker is stopped');
	ok_enter_after_a_second($gate, 'while the worker is stopped');
	is(of_worker('samples, pid'), "$samples|$pid", 'it has not sampled meanwhile');

	$gate->continue_gate_worker;
	ok_comes_to_worker("samples > $samples", 'it goes on when it can');
	is(of_worker('pid'), $pid, 'and is still the same');
	ok_looks_at_holder('when it goes on');
}
$gate->ok_quiet('after the worker was stopped');

# Past hot spots
#
# Those that lock a row and leave it as it is
my $hot_row = "BEGIN;\nSELECT FROM sale WHERE id = 2 FOR UPDATE;\nSELECT pg_sleep(0.005);\nCOMMIT;";
my $advisory = 'SELECT pg_advisory_xact_lock(3, 42), pg_sleep(0.005);';

my $key = 'ROW(kind, datname, relation, classid, objid, objsubid)';
my $is_past = 'count(*) = 1 FROM pg_stat_admission_gate_past_hot_spots';

sub past { my ($what) = @_; return $gate->value("SELECT $what FROM pg_stat_admission_gate_past_hot_spots"); }

# What the log says of the hot spots that have ended
sub logged { return [ slurp_file($gate->node->logfile) =~ /LOG:  hot spot ended (.*)/g ]; }

# A crowd makes a hot spot and goes.  Returns what the hot spot had seen before.
sub make_hot_spot
{
	my ($script, $kind) = @_;
	my $crowd = $gate->crowd(24, $script);
	my $of_kind = "FROM pg_stat_admission_gate_hot_spots WHERE kind = '$kind'";
	$gate->ok_comes("count(*) = 1 $of_kind AND waiting > 0 AND admitted > 100 AND total_wait_time > 1000",
		"a hot spot: $kind");
	my ($since, $admitted, $wait_time) = split /\|/, $gate->value("SELECT since, admitted, total_wait_time $of_kind");
	$gate->ok_stops($crowd);
	return "since = '$since' AND most_in_line BETWEEN 2 AND 24
		AND admitted >= $admitted AND total_wait_time >= $wait_time";
}

$gate->set(max_active_backends => -1);
{
	my $had = make_hot_spot($hot_row, 'relation');
	my $gone = $gate->value('SELECT clock_timestamp()');
	is(past('count(*)'), '0', 'a hot spot lasts for a while after its crowd has gone');
	$gate->ok_comes($is_past, 'then it is a past one');
	is(past($key), '(relation,postgres,sale,,,)', 'it is shown as what it was');
	is(past("ended BETWEEN '$gone' AND clock_timestamp() AND $had"), 't', 'with all that was counted');
	is($gate->value('SELECT id FROM sale WHERE ctid = (SELECT last_row FROM pg_stat_admission_gate_past_hot_spots)'),
		'2', 'and the row');
	is($gate->value('SELECT count(*) FROM pg_stat_admission_gate_hot_spots'), '0', 'there is no hot spot any more');
}
is_deeply(logged(), [], 'by default, its end is not logged');
$gate->value('SELECT pg_stat_admission_gate_reset()');
is(past('count(*)'), '0', 'a reset forgets it');

# What is waited at the hot spot counts, in all.
$gate->set(log_min_wait => 1000);
{
	my $had = make_hot_spot($advisory, 'advisory');
	$gate->set(hot_spots => 'off');
	$gate->ok_comes($is_past, 'a hot spot that hot_spots = off ends is a past one, too');
	is(past($key), '(advisory,postgres,,3,42,2)', 'with its key');
	is(past('last_row IS NULL'), 't', 'and no row');
	is(past($had), 't', 'and all that was counted');
	$gate->ok_comes(sub { @{ logged() } }, 'with log_min_wait, its end is logged');
	my $line = q{'after %s s: advisory lock (3, 42, 2), at most %s waiting, %s admitted, %s s waited in all'};
	my @figures = (
		q{extract('epoch' FROM ended - since)::numeric(9, 1)}, 'most_in_line',
		'admitted', '(total_wait_time / 1000)::numeric(9, 1)');
	is_deeply(logged(), [ past("format($line, " . join(', ', @figures) . ')') ], 'with the figures of the view');
}

# The next worker knows it from shared memory.
{
	my $pid = of_worker('pid');
	$gate->value("SELECT pg_terminate_backend($pid)");
	ok_comes_to_worker("pid <> $pid AND samples > 0", 'another worker comes');
	is(past('count(*)'), '1', 'past hot spots outlive the worker');
	is(scalar @{ logged() }, 1, 'and are not logged again');
}
$gate->set(log_min_wait => 3_600_000, hot_spots => 'on', max_active_backends => 1);
$gate->ok_quiet('after past hot spots');
$gate->node->stop;

# Missing
my $without = GateTest->new(
	'without_worker',
	max_worker_processes => 0,
	max_logical_replication_workers => 0,
	max_active_backends => 1,
	idle_after => 100);
like(
	slurp_file($without->node->logfile),
	qr/LOG:  too many background workers\n.*DETAIL:  .*\n.*HINT:  .*max_worker_processes/,
	'the log says what to raise where there is no room for the worker');
is(of_worker('pid, started, last_sample, samples, sample_time', $without),
	'|||0|0', 'the view shows that it does not run');
ok_handed_on($without, 'without the worker');
ok_enter_after_a_second($without, 'without the worker');
$without->set_soon(max_active_backends => 0);
{
	my $holder = $without->holder;
	$without->ok_runs($without->session, 'SELECT 1', 'without the worker, the gate can be switched off all the same');
	$holder->query('COMMIT');
}
$without->node->stop;
done_testing();
