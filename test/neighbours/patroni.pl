# Proves that Patroni and the gate get along: with two nodes, etcd and synchronous
# replication, the gate of both nodes full, and the lines of docs/operations.md typed,
# Patroni's probes answer as ever and nobody takes the leader for dead; under load, a
# switchover and the death of the leader's postmaster lose nothing that was
# committed, and leave nothing stuck.
#
# Needs Debian's packages patroni, python3-etcd, etcd-server and python3-psycopg2.

use strict;
use warnings;
use lib 'test/perl';
use GatePooler;
use GateTest;
use HTTP::Tiny;
use JSON::PP;

# What GateClient needs of a server
sub Node::name { return $_[0]->{name}; }
sub Node::host { return $_[0]->{host}; }
sub Node::port { return $_[0]->{port}; }

my ($patroni, $patronictl, $etcd) = map { GatePooler::program($_) } qw(patroni patronictl etcd);
plan skip_all =>
  'needs Patroni and etcd: sudo apt-get install -y --no-install-recommends patroni python3-etcd etcd-server'
  if !$patroni || !$etcd;

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
	return start_program('etcd', $etcd, map { "--$_=$options{$_}" } keys %options);
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
      use_pg_rewind: true
      parameters:
        shared_preload_libraries: admission_gate
        max_connections: 100
        wal_log_hints: 'on'
        admission_gate.max_active_backends: 0
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
    rewind: { username: rewind_user, password: '$password' }
  parameters: { unix_socket_directories: $sockets }
  pg_hba:
    - local all all trust
    - local replication all trust
    - host all all 127.0.0.1/32 scram-sha-256
    - host replication all 127.0.0.1/32 scram-sha-256
END
	return start_program($node->name, $patroni, $file);
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

# The limit and other settings by Patroni's own means; both nodes have them soon.
sub set_everywhere
{
	my ($gates, %settings) = @_;

	my ($status, $said) = rest($gates->[0]->node, 'PATCH', 'config',
		{ postgresql => { parameters => { map { ("admission_gate.$_" => $settings{$_}) } keys %settings } } });
	is($status, 200, 'Patroni takes the settings of the gate') or diag explain $said;
	for my $gate (@$gates)
	{
		$gate->await("SELECT setting = '$settings{$_}' FROM pg_settings WHERE name = 'admission_gate.$_'",
			"$_ = $settings{$_}")
		  foreach sort keys %settings;
		$gate->await("SELECT max_active = $settings{max_active_backends} FROM pg_stat_admission_gate", 'the limit');
	}
	return;
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

$gates[0]->value(
	'CREATE EXTENSION admission_gate',
	'CREATE ROLE web LOGIN',
	'CREATE ROLE tester LOGIN SUPERUSER',
	'CREATE TABLE inserted (id int GENERATED ALWAYS AS IDENTITY, slept text)',
	'GRANT ALL ON inserted TO web');
$gates[1]->await(q{SELECT to_regclass('inserted') IS NOT NULL}, 'the table on the replica');
$tester = 'tester';    # as postgres is about to bypass the gate
$_->observer->quit foreach @gates;

my $page = slurp_file('docs/operations.md');
for my $role ('postgres', 'rewind_user')
{
	my ($line) = $page =~ /^\| .* \| `(ALTER ROLE $role .*)` \|$/m;
	$gates[0]->value($line);
}

# Patroni has connections from before.
my ($reconnect) = $page =~ /`(SELECT pg_terminate_backend.*?)`/s;
$gates[1]->await(q{SELECT count(*) = 2 FROM pg_db_role_setting}, 'the lines on the replica');
$_->value($reconnect =~ s/\n/ /gr) foreach @gates;
await_status($_, 'health', 'the new connection of Patroni') foreach @nodes;

{
	set_everywhere(\@gates, max_active_backends => 1, idle_after => -1);
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
			my ($status, $said) = rest($nodes[$n], 'GET', $path);
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
}

# The transactions that clients were told are committed, so far
my $acknowledged = 0;

# It keeps its slot for a while: without that, the wait for the synchronous replica, which
# needs none, leaves no queue.
append_to_file("$directory/insert", 'INSERT INTO inserted (slept) SELECT pg_sleep(0.005)::text;');

# Has 40 clients insert rows at a node, for that long or until they lose their connections.
sub insert_rows
{
	my ($gate, $length, $meanwhile) = @_;

	my $pgbench = IPC::Run::start(
		$gate->pgbench('-c', 40, $length, '-f', "$directory/insert", '-U', 'web'),
		'<' => \undef,
		'>' => \my $out,
		'2>' => '/dev/null',
		IPC::Run::timeout(12 * $ttl));
	$meanwhile->();
	$pgbench->finish;
	my $processed = $out =~ /actually processed: (\d+)/ ? $1 : 0;
	$acknowledged += $processed;
	return $processed;
}

# Has the leader change while clients are at work, and looks at what came of it.
sub change_leader
{
	my ($what, $change) = @_;
	my ($old) = grep { status_of($_->node, 'primary') == 200 } @gates;
	my ($new) = grep { $_ != $old } @gates;

	my $told = insert_rows(
		$old, '-T600',
		sub {
			$old->await('SELECT count(*) > 100 FROM inserted', 'rows');
			$old->await('SELECT waiting > 10 FROM pg_stat_admission_gate', 'a queue');
			$change->($old, $new);
		});
	cmp_ok($told, '>', 0, "$what: clients were told of commits");
	await_status($new->node, 'primary', "$what, from a leader with a queue: the other node leads");
	$_->{observer} = undef foreach @gates;
	$new->await('SELECT NOT pg_is_in_recovery()');    # Patroni says so before
	is(insert_rows($new, '-t20', sub { }), 800, "$what: and works");
	await_status($old->node, 'sync', "$what: the old leader follows");
	cmp_ok($new->value('SELECT count(*) FROM inserted'),
		'>=', $acknowledged, "$what: nothing that was committed is lost");
	$_->ok_quiet("$what, on " . $_->node->name) foreach ($new, $old);
	return;
}

set_everywhere(\@gates, max_active_backends => 4, idle_after => 100);
change_leader(
	'switchover',
	sub {
		my ($old, $new) = @_;
		start_program(
			'switchover', $patronictl, '-c', "$directory/one.yaml",
			'switchover', '--force', '--leader', $old->node->name,
			'--candidate', $new->node->name, 'gate');
	});
change_leader(
	'death of the postmaster',
	sub {
		my ($old) = @_;
		my ($pid) = slurp_file("$directory/data_" . $old->node->name . '/postmaster.pid') =~ /^(\d+)/;
		kill KILL => $pid;
	});

stop_all();
done_testing();
