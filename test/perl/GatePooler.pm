#
# A connection pooler that runs in front of a server with a gate.
#
# It speaks on a socket in a directory of its own, where its other files are, too.
#
package GatePooler;

use strict;
use warnings;

use GateTest;
use POSIX ();

# A test that a signal ends has to stop its pooler, too.  PostgreSQL's modules see to that
# from version 16 on.
$SIG{$_} //= sub { die "death by signal\n" }
  foreach ('INT', 'TERM');

my @poolers;
END { local $?; $_->stop foreach @poolers; }

# Where the program is, undef if nowhere.  Not everybody's PATH leads to daemons.
sub program
{
	my ($name) = @_;
	my ($found) = grep { -x } map { "$_/$name" } split(/:/, $ENV{PATH}), '/usr/sbin';
	return $found;
}

# In front of a server with these settings, and a role and a database, both named app, for its
# clients; skips the test if there is no such program.  end_by: the signal that ends it, if it
# has System V shared memory or semaphores, which only it removes.
sub new
{
	my ($class, $name, %param) = @_;
	my $program = program($name) or plan skip_all => "$name is not installed";

	note `$program --version 2>&1`;
	my $end_by = delete $param{end_by};
	my $gate = GateTest->new("behind_$name", max_active_backends => 1, idle_after => -1, %param);
	$gate->value('CREATE ROLE app LOGIN', 'CREATE DATABASE app OWNER app');
	push @poolers,
	  bless {
		program => $program,
		gate => $gate,
		end_by => $end_by,
		host => PostgreSQL::Test::Utils::tempdir_short(),
		port => PostgreSQL::Test::Cluster::get_free_port()
	  },
	  $class;
	return $poolers[-1];
}

# GateClient takes it for a server.
sub host { return $_[0]->{host}; }
sub port { return $_[0]->{port}; }
sub gate { return $_[0]->{gate}; }

sub log { return slurp_file("$_[0]->{host}/log"); }

# Starts it anew with that text as its file of settings, whose name comes last of its
# arguments, in a group of its own with all processes that it makes.
sub start
{
	my ($self, $settings, @arguments) = @_;
	my $dir = $self->{host};

	$self->stop;
	unlink map { "$dir/$_" } 'settings', 'log', 'pid', ".s.PGSQL.$self->{port}";
	append_to_file("$dir/settings", $settings);
	$self->{pid} = fork // die "cannot fork: $!";
	return if $self->{pid};
	POSIX::setsid();
	open STDIN, '<', '/dev/null';
	open STDOUT, '>', "$dir/log";
	open STDERR, '>&', \*STDOUT;
	exec $self->{program}, @arguments, "$dir/settings" or POSIX::_exit(127);
}

# Waits until it has logged that it is there.
sub await_log
{
	my ($self, $line) = @_;
	my $logged = $self->{gate}->await_true(sub { -e "$self->{host}/log" && $self->log =~ $line }, "$line in the log");
	return $logged || BAIL_OUT('it does not start: ' . $self->log);
}

# Ends it at once, whatever it is doing.
sub stop
{
	my ($self) = @_;

	my $pid = delete $self->{pid} or return;
	if ($self->{end_by})
	{
		local $GateClient::patience = 10;
		kill $self->{end_by} => $pid;
		return kill KILL => -$pid
		  if $self->{gate}->await_true(sub { waitpid($pid, POSIX::WNOHANG()) == $pid }, 'the end of the pooler');
	}
	kill KILL => -$pid;
	return waitpid $pid, 0;
}

sub session
{
	my ($self, %param) = @_;
	return GateClient->new($self, user => 'app', database => 'app', %param);
}

# What libpq has to know, also of a client that logs in by a password
sub login
{
	my ($self) = @_;
	my %login =
	  (PGHOST => $self->host, PGPORT => $self->port, PGUSER => 'app', PGPASSWORD => 'secret', PGDATABASE => 'app');
	# Poolers take no options of a session, such as those of make installcheck.
	return (%login, PGOPTIONS => '');
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
# then, that is in the queue.  It is sent by psql if there is no session.
sub ok_answered_after
{
	my ($self, $holder, $sql, $answer, $queued, $what, $session) = @_;

	$holder->query('BEGIN');
	$session ? $session->start($sql) : $self->start_psql($sql);
	$self->ok_queued($queued, $what);
	$holder->query('COMMIT');
	return is($session ? $session->finish : $self->answer, $answer, 'and then the client has its answer');
}

# More clients than slots, and than connections, if there is a bound
sub ok_carries_crowd
{
	my ($self, $clients, $connections) = @_;
	my $gate = $self->{gate};

	local %ENV = (%ENV, $self->login);
	$gate->set(max_active_backends => 2, idle_after => 100);
	command_ok([ 'pgbench', '-i', '-q', '-s', '1' ], 'pgbench makes its tables behind the pooler');
	my $admitted = $gate->counter('admitted');
	command_ok([ 'pgbench', '-n', '-c', $clients, '-t', '50' ], "pgbench has $clients clients");
	cmp_ok($gate->counter('admitted') - $admitted, '>=', 50 * $clients, 'each transaction has met the gate');
	cmp_ok($gate->value("SELECT count(*) FROM pg_stat_activity WHERE usename = 'app'"),
		'<=', $connections, "in $connections connections")
	  if $connections;
	return $gate->ok_quiet('after pgbench');
}

sub ok_ends
{
	my ($self) = @_;

	$self->stop;
	return $self->{gate}->finish;
}

# What waits in the queue of the server, as "role: statement".  A pooler's processes are
# not its clients', so the role and the statement tell whose it is.  Some versions of
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
