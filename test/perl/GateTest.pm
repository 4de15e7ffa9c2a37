#
# A server with a gate, and what the tests ask of it.
#
# What the tests themselves look at goes through the observer, a session that
# bypasses the gate.  A session ends when its variable goes out of scope.
#
package GateTest;

use strict;
use warnings;

use Carp;
use Exporter 'import';
use GateClient;
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test2::API ();
use Test::More;
use Time::HiRes qw(time usleep);

# Every test uses these.
our @EXPORT = (@Test::More::EXPORT, @PostgreSQL::Test::Utils::EXPORT, 'time', 'usleep', '$begins_with_bypass');

# A failed test is reported by its line in the test file, or where that has called the
# named function in which it is.
Test2::API::test2_add_callback_context_acquire(
	sub {
		my ($param) = @_;
		for (my $i = 1; my ($package, $file) = caller $i; $i++)
		{
			my $function = (caller $i + 1)[3] // '';
			next if $file ne $0 || $function =~ /::(?!__ANON__)\w+$/;
			$param->{level} = $i - 2;
			return;
		}
	});

# A block that may not wait: it begins with the bypass, which then ends
our $begins_with_bypass = 'SET admission_gate.bypass = on; BEGIN; RESET admission_gate.bypass';

# Parameters that are given without their prefix
my %gate_parameter = map { $_ => 1 } qw(max_active_backends bypass queue_timeout max_queue_length
  hot_spots idle_after long_after log_min_wait mode
  pools pool bypass_application_names);

# Starts a server.  settings: configuration parameters; init: arguments for
# PostgreSQL::Test::Cluster->init.
sub new
{
	my ($class, $name, %settings) = @_;
	my $init = delete $settings{init} // {};

	my $node = PostgreSQL::Test::Cluster->new($name);
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
sub around { my ($class, $node) = @_; return bless { node => $node }, $class; }

sub node { return $_[0]->{node}; }

sub _full_name { return $gate_parameter{ $_[0] } ? "admission_gate.$_[0]" : $_[0]; }

# Writes settings to postgresql.conf.
sub configure
{
	my ($self, %settings) = @_;
	my @lines = map { _full_name($_) . " = '$settings{$_}'" } sort keys %settings;
	return $self->{node}->append_conf('postgresql.conf', join "\n", @lines);
}

# Changes settings by ALTER SYSTEM, which works on a standby, too, and reloads them.
sub set_soon
{
	my ($self, %settings) = @_;
	return $self->value((map { 'ALTER SYSTEM SET ' . _full_name($_) . " = '$settings{$_}'" } sort keys %settings),
		'SELECT pg_reload_conf()');
}

# The same, and waits until the server works by them: new sessions have them, and the
# worker has published them.
sub set
{
	my ($self, %settings) = @_;

	$self->set_soon(%settings);
	for my $name (sort keys %settings)
	{
		my ($full_name, $value) = (_full_name($name), $settings{$name});
		my $unit = $value =~ /^-?\d+$/ ? '::numeric' : '';
		$self->await("SELECT setting$unit = '$value' FROM pg_settings WHERE name = '$full_name'");
		my %shown = (max_active_backends => "max_active = $value OR pool <> 'default'", mode => "mode = '$value'");
		$self->await("SELECT bool_and($shown{$name}) FROM pg_stat_admission_gate") if $shown{$name};
	}
	return $self->await(sub { $self->_has_published }, 'the worker to publish the settings');
}

# Once a session has reread the configuration, has the worker, too?  The postmaster signals
# all and sleeps; then no signal is on its way to the worker, which sleeps as well.  Not every
# kernel tells.
sub _has_published
{
	my ($self) = @_;
	my $worker = $self->value('SELECT pid FROM pg_stat_admission_gate_worker');

	return 1 if !-r "/proc/$worker/status";
	return eval {
		my ($postmaster) = slurp_file("/proc/$worker/status") =~ /^PPid:\s*(\d+)/m;
		!grep { slurp_file("/proc/$_/status") !~ /^State:\s*S.*^SigPnd:\s*0+\nShdPnd:\s*0+$/ms } $postmaster, $worker;
	};
}

# Sessions
#
# A session of a client; see GateClient.
sub session { my ($self, %param) = @_; return GateClient->new($self->{node}, %param); }

# A session that holds a slot, in a transaction.
sub holder
{
	my ($self, %param) = @_;
	my $session = $self->session(%param);
	$session->query('BEGIN');
	return $session;
}

# A session that waits in the queue with this statement.
sub waiter { my ($self, $sql, %param) = @_; return $self->queue($self->session(%param), $sql); }

# Starts a statement, or whatever the function does, and waits until the session queues.
sub queue
{
	my ($self, $session, $start) = @_;

	_start($session, $start);
	$self->await_queued($session);
	return $session;
}

sub _start { my ($session, $start) = @_; return ref $start ? $start->($session) : $session->start($start); }

sub await_queued
{
	my ($self, $session) = @_;
	return $self->await(sub { $self->state($session) eq 'waiting' }, 'a waiting session');
}

# Until that one has waited for so many ms
sub await_wait
{
	my ($self, $session, $ms) = @_;
	return $self->await(sub { ($self->state($session, 'wait_time') || 0) > $ms }, "a wait of $ms ms");
}

# The session waits, and does not take the free slot that it was called for, because it is
# stopped.  That the slot became free soon, so that it was not handed over, takes some luck.
sub call_in_vain
{
	my ($self, $session) = @_;
	my $holder = $self->session;

	return $self->await(
		sub {
			$holder->query('BEGIN');
			$self->queue($session, 'SELECT 1');
			$self->stop_waiter($session);
			$holder->query('COMMIT');
			return 1 if $self->state($session) eq 'waiting';
			kill CONT => $session->pid;
			return !$session->finish;
		},
		'a slot that is free while a session waits');
}

# A session that holds a slot and is at work until it is told to stop.
sub worker
{
	my ($self, %param) = @_;

	my $session = $self->session(%param);
	$session->start('DO $$ BEGIN LOOP END LOOP; END $$');
	$self->await(sub { $self->state($session) eq 'running' }, 'a session at work');
	return $session;
}

# Writes a script for pgbench and returns its name.
sub script
{
	my ($self, $text) = @_;
	my $file = $self->node->basedir . '/script' . ++$self->{scripts};
	append_to_file($file, $text);
	return $file;
}

sub pgbench
{
	my ($self, @arguments) = @_;
	return [ 'pgbench', '-n', @arguments, '-h', $self->node->host, '-p', $self->node->port, 'postgres' ];
}

# So many clients begin to run a script, over and over, until they are stopped.
# session: as for session()
sub crowd
{
	my ($self, $clients, $script, %param) = @_;

	# PostgreSQL's tests set it; ok_stops() looks for this one.
	local $ENV{PGAPPNAME} = 'pgbench';
	local $ENV{PGOPTIONS} = GateClient::options($param{session});
	return IPC::Run::start($self->pgbench('-c', $clients, '-j', 4, '-T', 3600, '-f', $self->script($script)),
		'>', '/dev/null');
}

sub stop_crowd
{
	my ($self, @crowds) = @_;
	$_->signal('TERM') foreach @crowds;
	$_->finish foreach @crowds;
	return;
}

# Stops them; then everything must be quiet, when they have done what was sent before.
sub ok_stops
{
	my ($self, @crowds) = @_;

	$self->stop_crowd(@crowds);
	$self->await("SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'pgbench'");
	return $self->ok_quiet('the crowd is gone');
}

# The session that the tests look through.
sub observer
{
	my ($self) = @_;
	my %settings = ('admission_gate.bypass' => 'on', application_name => 'observer');

	$self->{observer} = $self->session(session => \%settings) if !$self->{observer} || $self->{observer}->closed;
	return $self->{observer};
}

# Restarts the server: fast or immediate.
sub restart { my ($self, $mode) = @_; $self->{node}->stop($mode); return $self->{node}->start; }

# After a restart: the old observer is gone, and the server may still recover.
sub await_restart
{
	my ($self) = @_;

	undef $self->{observer};
	my $answers = sub {
		eval { $self->value('SELECT 1') }
	};
	return $self->await_true($answers, 'the server to restart');
}

# What the observer sees; of the last statement, if there are several.
sub value { my ($self, @sql) = @_; return $self->observer->query(@sql); }

sub activity
{
	my ($self, $session, $what) = @_;
	return $self->value("SELECT $what FROM pg_stat_activity WHERE pid = " . $session->pid);
}

# Waiting for something
#
# Waits until the function returns true.  Returns whether it did.
sub await_true
{
	my ($self, $function, $what) = @_;

	my $start = time;
	until ($function->())
	{
		if (time > $start + $GateClient::patience)
		{
			diag "timed out waiting for $what";
			return 0;
		}
		usleep(time < $start + 0.02 ? 1_000 : time < $start + 0.3 ? 10_000 : 30_000);
	}
	return 1;
}

# Waits until the query or the function returns true; dies if it does not.
sub await
{
	my ($self, $condition, $what) = @_;
	$what //= $condition;

	return $self->await_true(ref $condition ? $condition : sub { $self->value($condition) eq 't' }, $what)
	  || croak "gave up: $what\n" . $self->report;
}

sub await_waiting
{
	my ($self, $n) = @_;
	return $self->await("SELECT sum(waiting) = $n FROM pg_stat_admission_gate", "$n waiting backends");
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

# Stops the gate's worker when it sleeps, unless the gate is off just after a sample, since it
# may hold locks while it samples; until it is told to go on, or the test ends.  Returns its
# process id.
my $stopped;
END { local $?; kill CONT => $stopped if $stopped }

sub stop_gate_worker
{
	my ($self) = @_;
	my $worker = 'FROM pg_stat_admission_gate_worker';
	my ($pid, $samples) = split /\|/, $self->value("SELECT pid, samples $worker");
	$self->await("SELECT samples > $samples $worker") if $self->counter('max_active') != 0;
	$self->await("SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = $pid");
	kill STOP => $stopped = $pid;
	return $pid;
}

# Waits until the gate's worker has taken so many samples more.
sub await_samples
{
	my ($self, $n) = @_;
	my $samples = $self->value('SELECT samples FROM pg_stat_admission_gate_worker');
	return $self->await("SELECT samples >= $samples + $n FROM pg_stat_admission_gate_worker");
}

sub continue_gate_worker { kill CONT => $stopped; undef $stopped; return; }

# Fails unless it comes to pass: that the query, without SELECT, yields true, or that the
# function does.
sub ok_comes
{
	my ($self, $condition, $what) = @_;
	my $true = ref $condition ? $condition : sub { $self->value("SELECT $condition") eq 't' };

	return ok($self->await_true($true, $what), $what) || diag $self->report;
}

# All these sessions have their answers, or soon.
sub ok_all_done
{
	my ($self, $what, @sessions) = @_;
	return $self->ok_comes(sub { !grep !$_->done, @sessions }, $what);
}

# Waits until the session's statement is in a wait of that type, such as Lock; it is
# a pattern for LIKE.
sub await_wait_event_type
{
	my ($self, $session, $type) = @_;
	return $self->await(sub { $self->activity($session, "state = 'active' AND wait_event_type LIKE '$type'") eq 't' },
		"a wait of type $type");
}

# What the gate looks like
# running, waiting, of all pools.
sub gauges
{
	my ($self) = @_;
	return $self->value('SELECT sum(running), sum(waiting) FROM pg_stat_admission_gate');
}

# The state of a session, or another column; empty if it neither holds nor wants a slot
sub state
{
	my ($self, $session, $what) = @_;
	$what //= 'gate_state';
	return $self->value("SELECT $what FROM pg_stat_admission_gate_backends WHERE pid = " . $session->pid);
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

# Assertions
#
# The session is found asleep in the queue.
sub ok_waits
{
	my ($self, $session, $what) = @_;

	return is($self->_waits_or_ends($session), 'waits', $what) || diag $self->report;
}

# The session starts something and is found asleep in the queue.
sub ok_queues
{
	my ($self, $session, $start, $what) = @_;
	_start($session, $start);
	return $self->ok_waits($session, $what);
}

# The session starts something and finishes without queueing.
sub ok_runs
{
	my ($self, $session, $start, $what) = @_;
	_start($session, $start);
	return $self->ok_passes($session, $what);
}

# The session finishes without queueing.
sub ok_passes
{
	my ($self, $session, $what) = @_;

	my $end = $self->_waits_or_ends($session);
	is($end, '00000', $what) or diag $self->report;
	return $end eq 'waits' && $session->stop;
}

# What comes first: the session waits for a slot (by both views), or it ends,
# then its SQLSTATE.
sub _waits_or_ends
{
	my ($self, $session) = @_;
	my $event = q{wait_event_type = 'Extension' AND wait_event IN ('AdmissionGateQueue', 'Extension')};

	my $waits = 0;
	$self->await_true(
		sub {
			return 1 if $session->done;
			return $waits = $self->state($session) eq 'waiting' && $self->activity($session, $event) eq 't';
		},
		'a session to wait or end') or return 'neither';
	return $waits ? 'waits' : $session->sqlstate;
}

# Everything is as if nobody had been here: no slot is held, nobody waits, and
# the next session is admitted without queueing.  The limit must not be 0.
sub ok_quiet
{
	my ($self, $when) = @_;

	$self->ok_comes('sum(running + waiting) = 0 FROM pg_stat_admission_gate', "$when: no slot is held and nobody waits")
	  or return;
	$self->ok_adds_up($when);
	my $before = $self->counter('ARRAY[admitted, queued]');
	$self->session->query('SELECT 1');
	return is($self->counter("ARRAY[admitted - 1, queued]"), $before, "$when: the next session is admitted at once");
}

# Every admission has ended in one of the ways it can.  A backend counts its end
# a moment after it has given its slot back.
sub ok_adds_up
{
	my ($self, $when) = @_;

	return $self->ok_comes('bool_and(admitted = completed + failed + running) FROM pg_stat_admission_gate',
		"$when: admitted = completed + failed + running");
}

sub finish
{
	my ($self) = @_;

	$self->ok_quiet('at the end');
	$self->node->stop;
	return done_testing();
}

sub end_sessions
{
	my ($self) = @_;
	$self->value(
		"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()");
	return $self->await("SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'client backend'",
		'all sessions to end');
}

# Let this test and its servers use two CPUs at most: few sessions keep these busy.
sub use_two_cpus
{
	my @cpus = map { /(\d+)-(\d+)/ ? $1 .. $2 : $_ } split /,/, (qx(taskset -cp $$) =~ /([\d,-]+)\s*$/)[0];
	return @cpus < 2 || qx(taskset -cp $cpus[0],$cpus[1] $$);
}

# There is exactly one slot at limit 1, or in that pool, whose limit is 1: none has
# leaked, none was made.  It goes through a long queue in which nobody arrives later:
# each depends on being woken by the one before.
sub ok_one_slot
{
	my ($self, $pool) = @_;

	$self->set(max_active_backends => $pool ? 3 : 1, idle_after => -1);
	my ($first, @others) =
	  map { $self->session(session => { 'admission_gate.pool' => $pool // 'default' }) } 0 .. 100;
	$self->ok_runs($first, 'BEGIN', 'at limit 1, one session is admitted at once');
	$_->start('SELECT 1') foreach @others;
	$self->await_waiting(100);
	is($self->gauges, '1|100', 'and others wait');
	$first->query('COMMIT');
	$self->ok_all_done('until each has had the slot', @others);
	undef $_ foreach ($first, @others);
	return $self->ok_quiet('at the end');
}

# Runs a piece of a test by its own settings; idle_after is 100 unless they say else.
# Nothing in it may wait for the last resort, which comes after a minute.  Afterwards,
# everything must be quiet.
sub piece
{
	my ($self, $what, $settings, $code) = @_;
	local $GateClient::patience = 50;

	$self->set(idle_after => 100, %$settings);
	$code->();
	$self->end_sessions;
	return $self->ok_quiet("after $what");
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
