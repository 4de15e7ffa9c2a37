#
# A connection pooler that runs in front of a server with a gate.
#
# It speaks on a socket in a directory of its own, where its other files may be, too.
#
package GatePooler;

use strict;
use warnings;

use GateClient;
use IPC::Run ();
use POSIX    ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

# A test that a signal ends has to stop its pooler, too.  PostgreSQL's modules see to that
# from version 16 on.
$SIG{$_} //= sub { die "death by signal\n" }
  foreach ('INT', 'TERM');

# Where the program is, undef if nowhere.  Not everybody's PATH leads to daemons.
sub program
{
	my ($name) = @_;
	my ($found) = grep { -x } map { "$_/$name" } split(/:/, $ENV{PATH}), '/usr/sbin';
	return $found;
}

# Makes a role and a database, both named app, for its clients.  end_by: the signal that
# ends the program, if it has System V shared memory or semaphores, which only it removes.
sub new
{
	my ($class, $gate, %option) = @_;

	$gate->value('CREATE ROLE app LOGIN', 'CREATE DATABASE app OWNER app');
	return bless {
		gate => $gate,
		end_by => $option{end_by},
		host => PostgreSQL::Test::Utils::tempdir_short(),
		port => PostgreSQL::Test::Cluster::get_free_port()
	}, $class;
}

# GateClient takes it for a server.
sub host { return $_[0]->{host}; }
sub port { return $_[0]->{port}; }

sub log { return slurp_file("$_[0]->{host}/log"); }

# Writes its file of settings, which replaces that from before.  Returns the path.
sub configure
{
	my ($self, $text) = @_;
	my $file = "$self->{host}/settings";

	unlink $file;
	append_to_file($file, $text);
	return $file;
}

# Starts it, in a group of its own with all processes that it makes.
sub start
{
	my ($self, @command) = @_;

	$self->{pid} = fork // die "cannot fork: $!";
	return if $self->{pid};
	POSIX::setsid();
	open STDIN, '<', '/dev/null';
	open STDOUT, '>', "$self->{host}/log";
	open STDERR, '>&', \*STDOUT;
	exec @command or POSIX::_exit(127);
}

# Waits until it has logged that.  Returns whether it does.
sub await_log
{
	my ($self, $line) = @_;
	return $self->{gate}->await_true(sub { -e "$self->{host}/log" && $self->log =~ $line }, "$line in the log");
}

# Ends it at once, whatever it is doing.
sub stop
{
	my ($self) = @_;

	my $pid = delete $self->{pid} or return;
	my $ended = $self->{end_by} && _ends_by($pid, $self->{end_by});
	kill KILL => -$pid;
	waitpid $pid, 0 if !$ended;
	return;
}

# Sends the signal and returns whether the program ends within some seconds.
sub _ends_by
{
	my ($pid, $signal) = @_;

	my $deadline = time + 10;
	kill $signal => $pid;
	while (time < $deadline)
	{
		return 1 if waitpid($pid, POSIX::WNOHANG()) == $pid;
		usleep(10_000);
	}
	diag "the pooler did not end by SIG$signal";
	return 0;
}

# A session through it
sub session
{
	my ($self, %param) = @_;
	return GateClient->new($self, user => 'app', database => 'app', %param);
}

# For clients that log in by a password: the function that poolers ask for it, as the manual
# of pgbouncer has it, and what libpq has to know
sub use_passwords
{
	my ($self) = @_;

	$self->{gate}->value($_)
	  foreach (
		"CREATE FUNCTION get_auth(name text, OUT username text, OUT password text) LANGUAGE sql SECURITY DEFINER
			SET search_path = pg_catalog AS 'SELECT usename::text, passwd FROM pg_shadow WHERE usename = \$1'",
		"ALTER ROLE app PASSWORD 'secret'");
	return;
}

sub login
{
	my ($self) = @_;
	# Poolers take no options of a session, such as those of make installcheck.
	return (
		PGHOST => $self->host,
		PGPORT => $self->port,
		PGUSER => 'app',
		PGPASSWORD => 'secret',
		PGDATABASE => 'app',
		PGOPTIONS => '');
}

# Has psql log in so and send one statement.
sub start_psql
{
	my ($self, $sql) = @_;

	local %ENV = (%ENV, $self->login);
	$self->{psql} = IPC::Run::start([ 'psql', '-XAtq', '-c', $sql ],
		'<', '/dev/null', '>', \$self->{answer}, '2>&1', IPC::Run::timeout($GateClient::patience));
	return;
}

sub answer
{
	my ($self) = @_;

	$self->{psql}->finish;
	chomp $self->{answer};
	return $self->{answer};
}

# The statement is answered when the holder's transaction has ended, which begins here; until
# then, that is in the queue.
sub ok_answered_after
{
	my ($self, $holder, $sql, $answer, $queued, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$holder->query('BEGIN');
	$self->start_psql($sql);
	$self->ok_queued($queued, $what);
	$holder->query('COMMIT');
	is($self->answer, $answer, 'and then the client has its answer');
	return;
}

# More clients than slots, and than connections, if there is a bound
sub ok_carries_crowd
{
	my ($self, $clients, $connections) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $gate = $self->{gate};

	local %ENV = (%ENV, $self->login);
	$gate->set(max_active_backends => 2, lend_after => 100, handoff_after => 20);
	command_ok([ 'pgbench', '-i', '-q', '-s', '1' ], 'pgbench makes its tables behind the pooler');
	my $admitted = $gate->counter('admitted');
	command_ok([ 'pgbench', '-n', '-c', $clients, '-t', '50' ], "pgbench has $clients clients");
	cmp_ok($gate->counter('admitted') - $admitted, '>=', 50 * $clients, 'each transaction has met the gate');
	cmp_ok($gate->value("SELECT count(*) FROM pg_stat_activity WHERE usename = 'app'"),
		'<=', $connections, "in $connections connections")
	  if $connections;
	$gate->ok_quiet('after pgbench');
	return;
}

# The end of a test
sub ok_ends
{
	my ($self) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$self->stop;
	$self->{gate}->ok_quiet('at the end');
	$self->{gate}->ok_adds_up('at the end');
	$self->{gate}->node->stop;
	return;
}

# What waits in the queue of the server, as "role: statement".  A pooler's processes are
# not its clients', so their statements are known by who sends them.  Some versions of
# pgpool-II qualify names, some do not.
sub queued
{
	my ($self) = @_;
	return $self->{gate}->value(
		"SELECT string_agg(usename || ': ' || replace(query, 'pg_catalog.', ''), '; ' ORDER BY usename, query)
		FROM pg_stat_admission_gate_backends b JOIN pg_stat_activity USING (pid) WHERE b.gate_state = 'waiting'");
}

# Waits until exactly that is in the queue.
sub ok_queued
{
	my ($self, $expected, $what) = @_;

	$self->{gate}->await_true(sub { $self->queued eq $expected }, "$expected in the queue");
	is($self->queued, $expected, $what) or diag $self->{gate}->report, $self->log;
	return;
}

1;
