# Proves that Patroni and the gate get along: with two nodes, etcd and synchronous
# replication, the gate of both nodes full, and what docs/operations.md says typed,
# Patroni's probes answer as ever and nobody takes the leader for dead.  What a restart, a
# crash or a promotion does to a queue is in test/t/standby.pl and chaos.pl.
#
# Needs Debian's packages patroni, python3-etcd, etcd-server and python3-psycopg2.

use strict;
use warnings;
use lib 'test/perl';
use GateTest;
use HTTP::Tiny;
use JSON::PP;

# What GateClient needs of a server
sub Node::name { return $_[0]->{name}; }
sub Node::host { return $_[0]->{host}; }
sub Node::port { return $_[0]->{port}; }

plan
  skip_all =>
  'needs Patroni and etcd: sudo apt-get install -y --no-install-recommends patroni python3-etcd etcd-server'
  if grep { system "command -v $_ >/dev/null" } 'patroni',
  'etcd';

# Seconds; Patroni takes no less.
my $ttl = 20;

my $directory = PostgreSQL::Test::Utils::tempdir();
my $sockets = PostgreSQL::Test::Utils::tempdir_short();
my $password = join '', map { sprintf '%02x', int rand 256 } 1 .. 16;
chomp(my $bindir = `pg_config --bindir`);

my %running;

sub start_program
{
	my ($name, @command) = @_;

	# Patroni's sessions are to have its own name.  Servers inherit the input: with a
	# synchronous standby, PostgreSQL's backends read it when they lose their postmaster.
	local %ENV = %ENV;
	delete $ENV{PGAPPNAME};
	$running{$name} =
	  IPC::Run::start(\@command, '<', '/dev/null', '>&' => "$PostgreSQL::Test::Utils::log_path/patroni_$name.log");
	return;
}

# Patroni stops its server when it is told to end; what is left of servers is stopped
# without it.
sub stop_all
{
	$_->signal('TERM') foreach values %running;
	my $deadline = time + 30;
	for my $name (sort { $b cmp $a } keys %running)
	{
		usleep(100_000) while $running{$name}->pumpable && time < $deadline;
		$running{$name}->kill_kill;
	}
	%running = ();
	for my $data (grep { -e "$_/postmaster.pid" } glob "$directory/data_*")
	{
		system "$bindir/pg_ctl", 'stop', '-D', $data, '-m', 'immediate';
	}
	return;
}

END { local $?; stop_all(); }

my ($clients, $peers) = map { '127.0.0.1:' . PostgreSQL::Test::Cluster::get_free_port() } 1 .. 2;

sub start_etcd
{
	my %options = (
		name => 'etcd',
		'data-dir' => "$directory/etcd",
		'listen-client-urls' => "http://$clients",
		'advertise-client-urls' => "http://$clients",
		'listen-peer-urls' => "http://$peers",
		'initial-advertise-peer-urls' => "http://$peers",
		'initial-cluster' => "etcd=http://$peers");
	return start_program('etcd', 'etcd', map { "--$_=$options{$_}" } keys %options);
}

# As one would write it, but for the times, which are as short as Patroni allows
sub start_patroni
{
	my ($node) = @_;
	my $file = "$directory/$node->{name}.yaml";

	unlink $file;
	append_to_file($file, <<"END");
scope: gate
name: $node->{name}
restapi: { listen: '127.0.0.1:$node->{rest}', connect_address: '127.0.0.1:$node->{rest}' }
etcd3: { hosts: '$clients' }
bootstrap:
  dcs:
    ttl: $ttl
    loop_wait: 2
    retry_timeout: 5
    primary_start_timeout: 0
    synchronous_mode: true
    postgresql:
      parameters:
        shared_preload_libraries: admission_gate
        max_connections: 100
        admission_gate.max_active_backends: 0
        admission_gate.idle_after: -1
  initdb: [ { auth-host: scram-sha-256 }, { auth-local: trust }, { username: postgres } ]
postgresql:
  listen: '127.0.0.1:$node->{port}'
  connect_address: '127.0.0.1:$node->{port}'
  data_dir: $directory/data_$node->{name}
  bin_dir: $bindir
  pgpass: $directory/pgpass_$node->{name}
  use_unix_socket: true
  use_unix_socket_repl: true
  authentication:
    superuser: { username: postgres, password: '$password' }
    replication: { username: replicator, password: '$password' }
  parameters: { unix_socket_directories: $sockets }
  pg_hba:
    - local all all trust
    - local replication all trust
    - host all all 127.0.0.1/32 scram-sha-256
    - host replication all 127.0.0.1/32 scram-sha-256
END
	return start_program($node->name, 'patroni', $file);
}

my $http = HTTP::Tiny->new(timeout => 10, http_proxy => undef);

# The answer of a node's REST interface: its status code, and what it says
sub rest
{
	my ($node, $method, $path, $body) = @_;

	my $answer =
	  $http->request($method, "http://127.0.0.1:$node->{rest}/$path", $body ? { content => encode_json($body) } : {});
	return ($answer->{status}, eval { decode_json($answer->{content}) } // $answer->{content});
}

sub status_of { my ($node, $path) = @_; my ($status) = rest($node, 'GET', $path); return $status; }

sub await_status
{
	my ($node, $path, $what) = @_;

	return ok(GateTest->await_true(sub { status_of($node, $path) == 200 }, $what), $what)
	  || BAIL_OUT("$what does not come about, see patroni_*.log");
}

my @nodes = map {
	my ($port, $rest) = map { PostgreSQL::Test::Cluster::get_free_port() } 1 .. 2;
	bless { name => $_, host => $sockets, port => $port, rest => $rest }, 'Node';
} 'one', 'two';
my @gates = map { GateTest->around($_) } @nodes;

# The roles are Patroni's, and not that of the user of this test.
my $tester = 'postgres';
{
	no warnings 'redefine';
	my $new = \&GateClient::new;
	*GateClient::new = sub { my ($class, $node, %param) = @_; return $new->($class, $node, user => $tester, %param); };
}

start_etcd();
start_patroni($nodes[0]);
await_status($nodes[0], 'primary', 'the first node leads');
start_patroni($nodes[1]);
await_status($nodes[1], 'sync', 'the second follows, synchronously');

$gates[0]->value('CREATE EXTENSION admission_gate', 'CREATE ROLE web LOGIN', 'CREATE ROLE tester LOGIN SUPERUSER');
$gates[1]->await(q{SELECT to_regrole('tester') IS NOT NULL}, 'the roles on the replica');
$tester = 'tester';    # as postgres is about to bypass the gate
$_->observer->quit foreach @gates;

my $page = slurp_file('docs/operations.md');
$gates[0]->value($page =~ /^\| .* \| `(ALTER ROLE postgres .*)` \|$/m);

# Patroni has connections from before.
my ($reconnect) = $page =~ /`(SELECT pg_terminate_backend.*?)`/s;
$gates[1]->await(q{SELECT count(*) = 1 FROM pg_db_role_setting}, 'the line on the replica');
$_->value($reconnect =~ s/\n/ /gr) foreach @gates;
await_status($_, 'health', 'the new connection of Patroni') foreach @nodes;

# The limit, by Patroni's own means; both nodes have it soon.
my ($status, $said) =
  rest($nodes[0], 'PATCH', 'config', { postgresql => { parameters => { 'admission_gate.max_active_backends' => 1 } } });
is($status, 200, 'Patroni takes a setting of the gate') or diag explain $said;
$_->await('SELECT max_active = 1 FROM pg_stat_admission_gate', 'the limit') foreach @gates;

my @sessions;
for my $gate (@gates)
{
	my $holder = $gate->holder(user => 'web');
	my @waiters = map { $gate->session(user => 'web') } 1 .. 40;
	$_->start('SELECT 1') foreach @waiters;
	$gate->await_waiting(40);
	push @sessions, $holder, @waiters;
}

# For longer than it takes Patroni to give a leader up
my (%slow, %wrong);
my $began = time;
while (time < $began + 2 * $ttl)
{
	foreach ('0 health', '0 primary', '1 health', '1 replica?lag=1MB', '0 patroni', '0 cluster')
	{
		my ($n, $path) = split / /;
		my $asked = time;
		($status, $said) = rest($nodes[$n], 'GET', $path);
		$slow{$_} = time - $asked if time - $asked > 1;
		$wrong{$_} = $status if $status != 200 || (ref $said && ($said->{state} // 'running') ne 'running');
	}
	usleep(200_000);
}
is_deeply(\%wrong, {}, 'while the gate of both nodes is full, all probes answer well');
is_deeply(\%slow, {}, 'and within a second');

my (undef, $cluster) = rest($nodes[0], 'GET', 'cluster');
my %role = map { $_->{name} => $_->{role} } @{ $cluster->{members} };
is_deeply(\%role, { one => 'leader', two => 'sync_standby' }, 'the leader is the same');
is_deeply([ map { $_->{lag} } grep { $_->{name} eq 'two' } @{ $cluster->{members} } ], [0], 'and the lag is known');
is($gates[0]->gauges, '1|40', 'the gate has let nobody in');

$_->quit foreach @sessions;
$_->ok_quiet('after the probes, on ' . $_->node->name) foreach @gates;

stop_all();
done_testing();
