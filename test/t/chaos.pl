# Proves that nothing gets lost or stuck when everything happens at once.
# Hundreds of sessions of mixed work on a primary and a standby, while the limit and other
# settings change by reload, sessions are cancelled, terminated, hung up, stopped for seconds,
# and killed with crash restarts, both servers are restarted in immediate mode, and the standby
# is promoted.  Meanwhile the gauges of the pools are those of the backends, and nobody waits
# without end.  Afterwards every session has been answered or told why, the gauges are zero,
# the totals add up, and the server logs have no error but the expected.
#
# GATE_CHAOS_SECONDS sets how long it lasts; two hours are a soak test.

use strict;
use warnings;
use lib 'test/perl';
use GateCrowd;
use GateTest;
use Time::HiRes qw(alarm);

my $seconds = $ENV{GATE_CHAOS_SECONDS} || 30;

# For how many seconds a session may be without an answer.  Where all holders wait for
# somebody in the queue, one more is let in after 1, 2, 4 ... 60 s: four times that, and what
# the statement itself waits for.
my $longest_wait = 300;

my $primary = GateTest->new(
	'primary', %GateCrowd::settings,
	max_active_backends => 5,
	max_connections => 500,
	wal_keep_size => '1GB',
	max_standby_streaming_delay => '500ms',
	wal_receiver_status_interval => '100ms',
	init => { allows_streaming => 1 });
my $crowd = GateCrowd->new($primary, 200);

$primary->node->backup('b');
my $node = PostgreSQL::Test::Cluster->new('standby');
$node->init_from_backup($primary->node, 'b', has_streaming => 1);
my $standby = GateTest->around($node);
$node->start;
my $readers = GateCrowd->readers($standby, 60);

sub one_of { return $_[ rand @_ ]; }

# When each happens next, and how many times each has
my %next = (
	reload => 0,
	crash => time + 5,
	restart => time + 13,
	'crash of the standby' => time + 7,
	'restart of the standby' => time + 16,
	pgbench => 0);
my %times;

# A restart makes all slots anew.  To see what leaks, there is none near the end.
my $last_restart = time + 0.6 * $seconds;
@next{ 'stop', 'look', 'promotion' } = map { $last_restart + $_ } 5, 6, 0.1 * $seconds;

# Is it time for this again?
sub due
{
	my ($what, $interval) = @_;

	return 0 if time < $next{$what};
	$next{$what} = time + $interval;
	$times{$what}++;
	return 1;
}

sub change_settings
{
	my ($gate) = @_;

	# The server may just be restarting.
	eval {
		$gate->set_soon(
			max_active_backends => one_of(-1, 1 + int rand 50, 1 + int rand 50),
			hot_spots => one_of('on', 'on', 'off'),
			mode => one_of('enforce', 'enforce', 'enforce', 'observe'),
			log_min_wait => one_of(-1, 0, 100),
			idle_after => one_of(0, 10, 100, 1000, -1),
			pools => one_of(
				'',
				'a: max_active = 2, priority = 5; b: max_active = 1',
				'a; c: priority = -5',
				'b: max_active = 3; default: max_active = 5',
				join('; ', map { "p$_: max_active = 1" } 1 .. 31)),
			bypass_application_names => one_of('', '', 'pgbench'),
			max_queue_length => one_of(-1, -1, -1, 0, 20, 200));
		1;
	} or undef $gate->{observer};
	return;
}

sub crash
{
	return kill KILL => map { $_->pid } grep { $_ } $_[0]->any_session;
}

# Stopped processes, and until when.  They go on when it is time, even if the test is stuck
# then.
my %stopped;
local $SIG{ALRM} = sub { continue_due(time) };
alarm 1, 1;
END { kill CONT => keys %stopped; }

sub continue_due
{
	my ($when) = @_;
	my @due = grep { $stopped{$_} < $when } keys %stopped;
	kill CONT => @due;
	delete @stopped{@due};
	return;
}

# Stops processes that sleep, and so hold no lock that others could not go on without: a few
# of any, all that wait at the gate, all that have a slot, or the one that tells the others of
# new settings.
my @some = (
	[ q{backend_type = 'client backend'}, 3 ],
	[ q{gate_state = 'waiting'}, 1000 ],
	[ q{gate_state <> 'waiting'}, 1000 ],
	[ q{backend_type = 'checkpointer'}, 1 ]);

sub stop_some
{
	my ($which, $most) = @{ one_of(@some) };
	my $sleepers = "SELECT pid FROM pg_stat_activity LEFT JOIN pg_stat_admission_gate_backends USING (pid)
		WHERE pid <> pg_backend_pid() AND wait_event <> 'SpinDelay'
		AND wait_event_type IN ('Activity', 'Client', 'Extension', 'IPC', 'Lock', 'Timeout') AND";
	my @pids = split /\n/, $primary->value("$sleepers $which ORDER BY random() LIMIT $most");
	return if !@pids;
	kill STOP => @pids;
	@stopped{@pids} = (time + 8 * rand() * rand() * rand()) x @pids;

	# Those that have woken up meanwhile go on.
	my %sleeps = map { $_ => 1 } split /\n/, $primary->value("$sleepers pid IN (" . join(',', @pids) . ')');
	my @awake = grep { !$sleeps{$_} } @pids;
	kill CONT => @awake;
	delete @stopped{@awake};
	return;
}

# Statement after statement, faster than the crowd; if the clients are ended, others come.
my $pgbench;
my $script =
  $primary->script("\\set id random(1, 20)\nUPDATE t SET v = v + 1 WHERE id = :id;\nSELECT v FROM t WHERE id = :id;\n");

sub keep_pgbench_going
{
	return if ($pgbench && $pgbench->pumpable) || !due('pgbench', 1);
	$pgbench->finish if $pgbench;
	$pgbench = IPC::Run::start($primary->pgbench('-c', 12, '-T', one_of(1, 5, 20), '-f', $script), '>&', '/dev/null');
	return;
}

# The crowd goes on until all is in order at some moment: the views are not read in one.
my $in_order = q{SELECT count(*) = 0
	FROM (SELECT pool, running, waiting FROM pg_stat_admission_gate) g
	FULL JOIN (SELECT pool, count(*) FILTER (WHERE gate_state = 'running') AS running,
			count(*) FILTER (WHERE gate_state = 'waiting') AS waiting
		FROM pg_stat_admission_gate_backends GROUP BY pool) b USING (pool)
	WHERE (coalesce(g.running, 0), coalesce(g.waiting, 0))
		IS DISTINCT FROM (coalesce(b.running, 0), coalesce(b.waiting, 0))};

sub ok_in_order
{
	continue_due('inf');
	ok($primary->await_true(sub { $crowd->step; $primary->value($in_order) eq 't' }, 'such a moment'),
		'the gauges of the pools are those of the backends');
	$primary->ok_adds_up('in the chaos');
	return cmp_ok($crowd->longest_unanswered, '<', $longest_wait, 'and no session waits without end');
}

my $promoted = 0;

$crowd->work(
	$seconds,
	sub {
		$readers->step;
		if (due('reload', 1))
		{
			change_settings($_) foreach ($primary, $standby);
		}
		keep_pgbench_going();
		if (time < $last_restart)
		{
			crash($crowd) if due('crash', 9);
			crash($readers) if due('crash of the standby', 11);
			$primary->restart('immediate') if due('restart', 20);
			$standby->restart('immediate') if due('restart of the standby', 20);
		}
		elsif (!$promoted && due('promotion', 1))
		{
			# Without waiting: it may need the readers to go on.  A conflict with recovery
			# does not end a statement whose client does not read its result.
			$promoted = eval { $standby->value('SELECT pg_promote(false)') eq 't' }
			  or undef $standby->{observer};
		}
		else
		{
			stop_some() if due('stop', rand 3);
			ok_in_order() if due('look', 8);
		}
		$crowd->disturb if rand() < 0.5;
		$readers->disturb if rand() < 0.1;
	});
alarm 0;
continue_due('inf');
$pgbench->kill_kill if $pgbench;
note 'what happened: ', join ', ', map { "$_ $times{$_}" } sort keys %times;

# The readers first, because the promotion may still be going on.
foreach my $sessions ($readers, $crowd)
{
	my $gate = $sessions->gate;
	my $name = $gate->node->name;

	ok($gate->await_restart, "$name: the server is there after the chaos");
	$gate->set(pools => '');
	$gate->set(
		max_active_backends => 4,
		idle_after => 100,
		mode => 'enforce',
		max_queue_length => -1);
	$sessions->ok_finishes;
	$gate->await('SELECT NOT pg_is_in_recovery()', 'the promotion');
	$gate->await("SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'client backend'",
		'all sessions to be gone');
	note $gate->report;
	$gate->ok_quiet("$name, after the chaos");
	$gate->ok_one_slot;
}

ok($promoted, 'the standby was promoted');

$_->gate->node->stop foreach ($readers, $crowd);
$_->ok_log foreach ($readers, $crowd);

done_testing();
