#
# A connection pooler that runs in front of a server with a gate.
#
# It speaks on a socket in a directory of its own, where its other files may be, too.
#
package GatePooler;

use strict;
use warnings;

use GateClient;
use POSIX ();
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
