#
# A server with a gate, and what the tests ask of it.
#
# What the tests themselves look at goes through the observer, a session that
# bypasses the gate.
#
package GateTest;

use strict;
use warnings;

use Carp;
use GateClient;
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test2::API ();
use Test::More;
use Time::HiRes qw(time usleep);

# After how many seconds without an answer a piece counts as stuck if that is what
# is expected of it: some times the lend_after of most pieces
my $stuck_after = 0.3;

# Parameters that are given without their prefix
my %gate_parameter = map { $_ => 1 } qw(max_active_backends scope bypass queue_timeout max_queue_length
  gate_utility handoff_after hot_spots lend_after long_after log_min_wait mode
  pools pool bypass_application_names);

# Starts a server.  settings: configuration parameters; node and init: arguments
# for PostgreSQL::Test::Cluster->new and ->init.
sub new
{
	my ($class, $name, %settings) = @_;
	my $node_param = delete $settings{node} // {};
	my $init = delete $settings{init} // {};

	my $node = PostgreSQL::Test::Cluster->new($name, %$node_param);
	$node->init(%$init);
	my $self = $class->around($node);
	$self->configure(
		shared_preload_libraries => 'admission_gate',
		max_connections => 50,
		autovacuum => 'off',
		# Superusers wait like everyone else.
		superuser_reserved_connections => 0,
		log_line_prefix => '%m [%p] %b ',
		restart_after_crash => 'on',
		%settings);
	$node->start;
	$self->value('CREATE EXTENSION admission_gate');
	return $self;
}

# For a server that exists.
sub around
{
	my ($class, $node) = @_;
	return bless { node => $node }, $class;
}

sub node { return $_[0]->{node}; }

sub _full_name { return $gate_parameter{ $_[0] } ? "admission_gate.$_[0]" : $_[0]; }

# Writes settings to postgresql.conf.
sub configure
{
	my ($self, %settings) = @_;

	$self->{node}
	  ->append_conf('postgresql.conf', join "\n", map { _full_name($_) . " = '$settings{$_}'" } sort keys %settings);
	return;
}

# Changes settings by ALTER SYSTEM, which works on a standby, too, and reloads them.
sub set_soon
{
	my ($self, %settings) = @_;

	%settings = $self->_enforced(%settings);
	$self->value("ALTER SYSTEM SET " . _full_name($_) . " = '$settings{$_}'") foreach sort keys %settings;
	$self->value('SELECT pg_reload_conf()');
	return;
}

# Settings, but for those that have a fixed value just now.
sub _enforced
{
	my ($self, %settings) = @_;

	my $fixed = $self->{fixed} // {};
	return (%settings, map { $_ => $fixed->{$_} } grep { exists $fixed->{$_} } keys %settings);
}

# The same, and waits until the server works by them: new sessions have them,
# and the limit holds for all.
sub set
{
	my ($self, %settings) = @_;

	%settings = $self->_enforced(%settings);
	$self->set_soon(%settings);
	for my $name (sort keys %settings)
	{
		my $full_name = _full_name($name);
		my $unit = $settings{$name} =~ /^-?\d+$/ ? '::numeric' : '';
		$self->await("SELECT setting$unit = '$settings{$name}' FROM pg_settings WHERE name = '$full_name'",
			"$full_name = $settings{$name}");
	}
	$self->await(
		"SELECT max_active = $settings{max_active_backends} FROM pg_stat_admission_gate WHERE pool = 'default'",
		"a limit of $settings{max_active_backends}")
	  if defined $settings{max_active_backends};
	$self->await("SELECT bool_and(mode = '$settings{mode}') FROM pg_stat_admission_gate", "mode $settings{mode}")
	  if defined $settings{mode};
	return;
}

# ----------------------------------------------------------------
# Sessions
# ----------------------------------------------------------------

# A session of a client; see GateClient.
sub session
{
	my ($self, %param) = @_;
	return GateClient->new($self->{node}, %param);
}

# A session that holds a slot, in a transaction.
sub holder
{
	my ($self, %param) = @_;

	my $session = $self->session(%param);
	$session->query('BEGIN');
	return $session;
}

# A session that holds a slot and is at work until it is told to stop.  Its slot is
# not lent; lend_after or handoff_after keeps the last resort from making up for it.
sub worker
{
	my ($self, %param) = @_;

	my $session = $self->session(%param);
	$session->start('DO $$ BEGIN LOOP END LOOP; END $$');
	$self->await(_state_is($session, 'running'), 'a session at work');
	return $session;
}

sub stop_worker
{
	my ($self, $worker) = @_;

	$worker->cancel;
	$worker->result;
	return;
}

# So many clients begin to run a script, over and over, until they are stopped.
# session: as for session(); max_tries: of a transaction that met a deadlock.
sub crowd
{
	my ($self, $clients, $script, %param) = @_;

	my $node = $self->node;
	my $session = $param{session} // {};
	my $file = $node->basedir . '/crowd' . ++$self->{crowds} . '.sql';
	PostgreSQL::Test::Utils::append_to_file($file, $script);
	local $ENV{PGOPTIONS} = join ' ', map { "-c $_=$session->{$_}" } sort keys %$session;
	return IPC::Run::start(
		[
			'pgbench', '-n', '-c', $clients, '-j', 4, '-T', 3600, '--max-tries', $param{max_tries} // 1,
			'-f', $file, '-h', $node->host, '-p', $node->port, 'postgres'
		],
		'>',
		'/dev/null');
}

# Stops them; then everything must be quiet.
sub ok_stops
{
	my ($self, @crowds) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	foreach my $crowd (@crowds)
	{
		$crowd->signal('TERM');
		$crowd->finish;
	}
	return $self->ok_quiet('the crowd is gone');
}

# The session that the tests look through.
sub observer
{
	my ($self) = @_;

	if (!$self->{observer} || $self->{observer}->closed)
	{
		$self->{observer} = $self->session(
			session => {
				'admission_gate.bypass' => 'on',
				'application_name' => 'observer'
			});
	}
	return $self->{observer};
}

# Restarts the server: fast or immediate.
sub restart
{
	my ($self, $mode) = @_;

	$self->{node}->stop($mode);
	$self->{node}->start;
	return;
}

# After a restart: the old observer is gone, and the server may still recover.
sub await_restart
{
	my ($self) = @_;

	undef $self->{observer};
	return $self->await_true(
		sub {
			eval { $self->value('SELECT 1') }
		},
		'the server to restart');
}

sub value
{
	my ($self, $sql) = @_;
	return $self->observer->query($sql);
}

# Creates an extension of PostgreSQL's contrib.  Returns false if there is none.
sub has_contrib
{
	my ($self, $extension) = @_;

	return 0 if $self->value("SELECT count(*) FROM pg_available_extensions WHERE name = '$extension'") eq '0';
	$self->value("CREATE EXTENSION IF NOT EXISTS $extension");
	return 1;
}

# ----------------------------------------------------------------
# Waiting for something
# ----------------------------------------------------------------

# Waits until the function returns true.  Returns whether it did.
sub await_true
{
	my ($self, $function, $what) = @_;

	my $deadline = time + $GateClient::patience;
	until ($function->())
	{
		if (time > $deadline)
		{
			diag "timed out waiting for $what";
			return 0;
		}
		usleep(10_000);
	}
	return 1;
}

# Waits until the query returns true; dies if it does not.
sub await
{
	my ($self, $sql, $what) = @_;

	$self->await_true(sub { $self->value($sql) eq 't' }, $what // $sql)
	  or croak 'gave up: ' . ($what // $sql) . "\n" . $self->report;
	return;
}

# Waits until so many backends queue.
sub await_waiting
{
	my ($self, $n) = @_;
	$self->await("SELECT sum(waiting) = $n FROM pg_stat_admission_gate", "$n waiting backends");
	return;
}

# Waits until the session queues.
sub await_queued
{
	my ($self, $session) = @_;
	$self->await(_state_is($session, 'waiting'), 'a waiting session');
	return;
}

# Stops a session that sleeps in the queue; not before it does, since it holds the
# mutex of the pool for a moment when it comes, and nobody could go on.
sub stop_waiter
{
	my ($self, $session) = @_;
	$self->await_wait_event_type($session, 'Extension');
	kill STOP => $session->pid;
	return;
}

# Waits until the session's statement is in a wait of that type, such as Lock; it is
# a pattern for LIKE.
sub await_wait_event_type
{
	my ($self, $session, $type) = @_;
	$self->await(
		"SELECT state = 'active' AND wait_event_type LIKE '$type' FROM pg_stat_activity WHERE pid = " . $session->pid,
		"a wait of type $type");
	return;
}

# ----------------------------------------------------------------
# What the gate looks like
# ----------------------------------------------------------------

sub _state_is
{
	my ($session, $state) = @_;
	return
		"SELECT count(*) = 1 FROM pg_stat_admission_gate_backends WHERE pid = "
	  . $session->pid
	  . " AND gate_state = '$state'";
}

# running, lent, waiting, of all pools.
sub gauges
{
	my ($self) = @_;
	return $self->value('SELECT sum(running), sum(lent), sum(waiting) FROM pg_stat_admission_gate');
}

# The state of a session, empty if it neither holds nor wants a slot
sub state
{
	my ($self, $session) = @_;
	return $self->value('SELECT gate_state FROM pg_stat_admission_gate_backends WHERE pid = ' . $session->pid);
}

# One column of a pool's row
sub counter
{
	my ($self, $column, $pool) = @_;
	$pool //= 'default';
	return $self->value("SELECT $column FROM pg_stat_admission_gate WHERE pool = '$pool'");
}

# Everything, for the reader of a failed test
sub report
{
	my ($self) = @_;
	return join "\n",
	  map { $self->value($_) } "SELECT row_to_json(s) FROM pg_stat_admission_gate s",
	  "SELECT row_to_json(h) FROM pg_stat_admission_gate_hot_spots h",
	  "SELECT b.*, wait_event_type, wait_event, query
		FROM pg_stat_admission_gate_backends b LEFT JOIN pg_stat_activity USING (pid)";
}

# ----------------------------------------------------------------
# Assertions
# ----------------------------------------------------------------

# The session is found asleep in the queue.
sub ok_waits
{
	my ($self, $session, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	my $end = $self->_waits_or_ends($session);
	is($end, 'waits', $what) or diag $self->report;
	return;
}

# The session finishes without queueing.
sub ok_passes
{
	my ($self, $session, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	my $end = $self->_waits_or_ends($session);
	is($end, '00000', $what) or diag $self->report;
	if ($end eq 'waits')
	{
		$session->cancel;
		$session->result;
	}
	return;
}

# What comes first: the session waits for a slot (by both views), or it ends,
# then its SQLSTATE.
sub _waits_or_ends
{
	my ($self, $session) = @_;
	my $pid = $session->pid;
	my $event =
	  $self->value("SELECT current_setting('server_version_num')::int >= 170000") eq 't'
	  ? 'AdmissionGateQueue'
	  : 'Extension';

	my $waits = 0;
	$self->await_true(
		sub {
			return 1 if $session->done;
			$waits = $self->value(
				"SELECT count(*) FROM pg_stat_activity a JOIN pg_stat_admission_gate_backends b USING (pid)
				WHERE pid = $pid AND b.gate_state = 'waiting' AND wait_event_type = 'Extension'
				AND wait_event = '$event'");
			return $waits;
		},
		'a session to wait or end') or return 'neither';
	return 'waits' if $waits;
	return $session->sqlstate;
}

# Everything is as if nobody had been here: no slot is held, nobody waits, and
# the next session is admitted without queueing.  The limit must not be 0.
sub ok_quiet
{
	my ($self, $when) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	my $quiet = $self->await_true(sub { $self->gauges eq '0|0|0' && $self->counter('long + paused') == 0 },
		'the gauges to be zero');
	ok($quiet, "$when: no slot is held and nobody waits")
	  or diag $self->report;
	return if !$quiet;

	my $before = $self->counter('ARRAY[admitted, queued]');
	my $next = $self->session;
	$next->query('SELECT 1');
	$next->quit;
	my ($admitted, $queued) = $before =~ /(\d+),(\d+)/;
	is( $self->counter('ARRAY[admitted, queued]'),
		'{' . ($admitted + 1) . ",$queued}",
		"$when: the next session is admitted at once");
	return;
}

# Every admission has ended in one of the ways it can.  A backend counts its end
# a moment after it has given its slot back.
sub ok_adds_up
{
	my ($self, $when) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	my $adds_up = $self->await_true(
		sub {
			$self->value(
				'SELECT bool_and(admitted = completed + failed + running + lent + long + paused) FROM pg_stat_admission_gate'
			) eq 't';
		},
		'the totals to add up');
	ok($adds_up, "$when: admitted = completed + failed + running + lent + long + paused")
	  or diag $self->report;
	return;
}

# Ends all sessions of clients but the observer.
sub end_sessions
{
	my ($self) = @_;
	$self->value(
		"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()");
	$self->await("SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'client backend'",
		'all sessions to end');
	return;
}

# There is exactly one slot at limit 1, or in that pool, whose limit is 1: none has
# leaked, none was made.  It goes through a long queue in which nobody arrives later
# or may be handed the slot, so that each depends on being woken by the one before.
sub ok_one_slot
{
	my ($self, $pool) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$self->set(max_active_backends => $pool ? 3 : 1, lend_after => 60_000, handoff_after => 3_600_000);
	my ($first, @others) =
	  map { $self->session(session => { 'admission_gate.pool' => $pool // 'default' }) } 0 .. 100;
	$first->start('BEGIN');
	$self->ok_passes($first, 'at limit 1, one session is admitted at once');
	$_->start('SELECT 1') foreach @others;
	$self->await_waiting(scalar @others);
	is($self->gauges, '1|0|100', 'and others wait');
	$first->query('COMMIT');
	my $all_done = $self->await_true(
		sub {
			!grep { !$_->done } @others;
		},
		'the queue to empty');
	ok($all_done, 'until each has had the slot') or diag $self->report;
	$_->quit foreach ($first, @others);
	$self->ok_quiet('at the end');
	return;
}

# Runs a piece of a test by its own settings; lend_after is 100 unless they say
# else.  If it gets stuck, it has failed and the next piece starts afresh.
# Afterwards, everything must be quiet.
#
# Then runs it with lending and the last resort off.  That must get it stuck, which
# proves that it tests lending, unless passes_without_lending tells why it does not; then
# nobody may have entered above the limit.  Or with is_let_in, somebody must have: a
# waiter that a holder waits for.
sub piece
{
	my ($self, $what, $settings, $code, %option) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$settings = { lend_after => 100, %$settings };
	$self->_try_piece($what, $settings, $code, $GateClient::patience);
	$self->_ok_cleans_up($what);
	$self->_try_without_lending($what, $settings, $code, %option);
	$self->_ok_cleans_up("$what, without lending");
	return;
}

sub _try_piece
{
	my ($self, $what, $settings, $code, $patience) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return
	  if eval {
		$self->set(%$settings);
		local $GateClient::patience = $patience;
		$code->();
		1;
	  };

	fail("$what: $@");
	$self->observer->hang_up;    # perhaps it is stuck itself
	diag $self->report;
	return;
}

# What its tests say is not this test's outcome, but whether one of them fails.
sub _try_without_lending
{
	my ($self, $what, $settings, $code, %option) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	my $passes = $option{is_let_in} ? 'a holder waits for who is let in for that' : $option{passes_without_lending};
	my $patience = $passes ? $GateClient::patience : $stuck_after;
	my $stalls = $self->value('SELECT sum(stalls) FROM pg_stat_admission_gate');
	my $events = Test2::API::intercept(
		sub {
			local $self->{fixed} = { lend_after => -1, handoff_after => 60_000 };
			$self->_try_piece($what, $settings, $code, $patience);
		});
	my @failed = map { $_->name // '' } grep { $_->causes_fail } @$events;

	if ($passes)
	{
		is(join('; ', @failed), '', "without lending, this passes, as $passes: $what");
		my $entered = $self->value('SELECT sum(stalls) FROM pg_stat_admission_gate') - $stalls;
		if ($option{is_let_in})
		{
			cmp_ok($entered, '>', 0, "and enters above the limit: $what");
		}
		else
		{
			is($entered, 0, "and nobody enters above the limit: $what");
		}
	}
	else
	{
		my ($stuck) = grep { /: (?:timed out|gave up)/ } @failed;
		ok($stuck, "without lending, this gets stuck: $what")
		  or diag @failed ? "but it fails: @failed" : 'but it passes';
	}
	return;
}

# Ends what a piece may have left behind; then everything must be quiet.
sub _ok_cleans_up
{
	my ($self, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	if (!eval { $self->_clean_up; 1 })
	{
		fail("cleaning up after $what: $@");
		$self->restart('immediate');
		$self->await_restart;
	}
	$self->ok_quiet("after $what");
	$self->ok_adds_up("after $what");
	return;
}

sub _clean_up
{
	my ($self) = @_;

	$self->end_sessions;
	$self->end_prepared_transactions;
	$self->set(max_active_backends => 1) if $self->counter('max_active') == 0;
	return;
}

# Rolls prepared transactions back.  older_than: seconds.
sub end_prepared_transactions
{
	my ($self, $older_than) = @_;

	return if $self->value('SELECT pg_is_in_recovery()') eq 't';
	$older_than //= 0;
	my $gids = $self->value(
		"SELECT gid FROM pg_prepared_xacts
		WHERE database = current_database() AND prepared <= now() - interval '$older_than second'");
	$self->observer->start("ROLLBACK PREPARED '$_'")->result foreach split /\n/, $gids;
	return;
}

1;
