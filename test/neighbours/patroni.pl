# Proves that Patroni and the gate get along: with two nodes, etcd and synchronous
# replication, the gate of both nodes full, and the lines of docs/operations.md typed,
# Patroni's probes answer as ever and nobody takes the leader for dead; under load, a
# switchover and the death of the leader's postmaster lose nothing that was
# committed, and leave nothing stuck.
#
# Needs Debian's packages patroni, python3-etcd, etcd-server and python3-psycopg2.

use strict;
use warnings;

# What GateClient needs of a server
package Node;

sub new  { my ($class, %node) = @_; return bless \%node, $class; }
sub name { return $_[0]->{name}; }
sub host { return $_[0]->{host}; }
sub port { return $_[0]->{port}; }

package main;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use GateTest;
use HTTP::Tiny;
use IPC::Run ();
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

sub program
{
	my ($name) = @_;
	my ($found) = grep { -x } map { "$_/$name" } split(/:/, $ENV{PATH}), '/usr/bin', '/usr/sbin';
	return $found;
}

plan skip_all =>
  'needs Patroni and etcd: sudo apt-get install -y --no-install-recommends patroni python3-etcd etcd-server'
  if !program('patroni') || !program('etcd');

# Seconds.  Patroni takes no less than 20 for ttl.
my ($ttl, $loop_wait, $retry_timeout) = (20, 2, 5);

my $top = "$FindBin::RealBin/../..";
my $directory = PostgreSQL::Test::Utils::tempdir();
my $sockets = PostgreSQL::Test::Utils::tempdir_short();
my $password = join '', map { sprintf '%02x', int rand 256 } 1 .. 16;
chomp(my $bindir = `pg_config --bindir`);

# ----------------------------------------------------------------
# Starting and stopping
# ----------------------------------------------------------------

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

my ($etcd_port, $peer_port) = map { PostgreSQL::Test::Cluster::get_free_port() } 1 .. 2;

sub start_etcd
{
	my ($clients, $peers) = map { "http://127.0.0.1:$_" } $etcd_port, $peer_port;

	start_program(
		'etcd', program('etcd'), '--name', 'etcd',
		'--data-dir', "$directory/etcd", '--listen-client-urls', $clients,
		'--advertise-client-urls', $clients, '--listen-peer-urls', $peers,
		'--initial-advertise-peer-urls', $peers, '--initial-cluster', "etcd=$peers");
	return;
}

# As one would write it, but for the times, which are as short as Patroni allows.
# JSON is YAML, too.
sub configuration
{
	my ($node) = @_;

	return {
		scope => 'gate',
		name => $node->name,
		restapi => { listen => "127.0.0.1:$node->{rest}", connect_address => "127.0.0.1:$node->{rest}" },
		etcd3 => { hosts => "127.0.0.1:$etcd_port" },
		bootstrap => {
			dcs => {
				ttl => $ttl,
				loop_wait => $loop_wait,
				retry_timeout => $retry_timeout,
				primary_start_timeout => 0,
				synchronous_mode => JSON::PP::true,
				postgresql => {
					use_pg_rewind => JSON::PP::true,
					parameters => {
						shared_preload_libraries => 'admission_gate',
						max_connections => 100,
						wal_log_hints => 'on',
						'admission_gate.max_active_backends' => 0
					}
				}
			},
			initdb => [ { 'auth-host' => 'scram-sha-256' }, { 'auth-local' => 'trust' }, { username => 'postgres' } ]
		},
		postgresql => {
			listen => "127.0.0.1:$node->{port}",
			connect_address => "127.0.0.1:$node->{port}",
			data_dir => "$directory/data_$node->{name}",
			bin_dir => $bindir,
			pgpass => "$directory/pgpass_$node->{name}",
			use_unix_socket => JSON::PP::true,
			use_unix_socket_repl => JSON::PP::true,
			authentication => {
				superuser => { username => 'postgres', password => $password },
				replication => { username => 'replicator', password => $password },
				rewind => { username => 'rewind_user', password => $password }
			},
			parameters => { unix_socket_directories => $sockets },
			pg_hba => [
				'local all all trust',
				'local replication all trust',
				'host all all 127.0.0.1/32 scram-sha-256',
				'host replication all 127.0.0.1/32 scram-sha-256'
			]
		}
	};
}

sub start_patroni
{
	my ($node) = @_;
	my $file = "$directory/$node->{name}.json";

	unlink $file;
	append_to_file($file, encode_json(configuration($node)));
	start_program($node->name, program('patroni'), $file);
	return;
}

# ----------------------------------------------------------------
# Asking Patroni
# ----------------------------------------------------------------

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

	my $deadline = time + 4 * $ttl;
	until (status_of($node, $path) == 200)
	{
		if (time > $deadline)
		{
			BAIL_OUT("$what does not come about, see patroni_*.log");
		}
		usleep(100_000);
	}
	pass($what);
	return;
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

# ----------------------------------------------------------------
# A cluster with a gate
# ----------------------------------------------------------------

my @nodes = map {
	Node->new(
		name => $_,
		host => $sockets,
		port => PostgreSQL::Test::Cluster::get_free_port(),
		rest => PostgreSQL::Test::Cluster::get_free_port())
} 'one', 'two';
my @gates = map { GateTest->around($_) } @nodes;

# The roles are Patroni's, not named after whoever runs this.
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

$gates[0]->value($_)
  foreach (
	'CREATE EXTENSION admission_gate',
	'CREATE ROLE web LOGIN',
	'CREATE ROLE tester LOGIN SUPERUSER',
	'CREATE TABLE acknowledged (id int PRIMARY KEY)',
	'GRANT ALL ON acknowledged TO web');
$gates[1]->await(q{SELECT to_regclass('acknowledged') IS NOT NULL}, 'the table on the replica');
$tester = 'tester';    # as postgres is about to bypass the gate
$_->observer->quit foreach @gates;

my $page = slurp_file("$top/docs/operations.md");
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

# ----------------------------------------------------------------
# Probes of full nodes
# ----------------------------------------------------------------

{
	set_everywhere(\@gates, max_active_backends => 1, lend_after => 60_000);
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
	my (%worst, %wrong);
	my $began = time;
	while (time < $began + 2 * $ttl)
	{
		for my $probe (
			[ 0, 'health' ],
			[ 0, 'primary' ],
			[ 1, 'health' ],
			[ 1, 'replica?lag=1MB' ],
			[ 0, 'patroni' ],
			[ 0, 'cluster' ])
		{
			my ($n, $path) = @$probe;
			my $asked = time;
			my ($status, $said) = rest($nodes[$n], 'GET', $path);
			my $took = time - $asked;
			my $name = $nodes[$n]->name . "/$path";
			$worst{$name} = $took if $took > ($worst{$name} // 0);
			$wrong{$name} //= $status
			  if $status != 200 || (ref $said && exists $said->{state} && $said->{state} ne 'running');
		}
		usleep(200_000);
	}
	is_deeply(\%wrong, {}, 'while the gate of both nodes is full, all probes answer well');
	note sprintf('%s: at most %.3f s', $_, $worst{$_}) foreach sort keys %worst;
	is_deeply([ grep { $worst{$_} > 1 } sort keys %worst ], [], 'and within a second');

	my (undef, $cluster) = rest($nodes[0], 'GET', 'cluster');
	my %role = map { $_->{name} => $_->{role} } @{ $cluster->{members} };
	is_deeply(\%role, { one => 'leader', two => 'sync_standby' }, 'the leader is the same');
	my ($follower) = grep { $_->{name} eq 'two' } @{ $cluster->{members} };
	is($follower->{lag}, 0, 'and the lag is known');
	is($gates[0]->gauges, '1|0|40', 'the gate has let nobody in');

	$_->quit foreach @sessions;
	$_->ok_quiet('after the probes, on ' . $_->node->name) foreach @gates;
}

# ----------------------------------------------------------------
# Failover under load
# ----------------------------------------------------------------

# Clients that insert one number after the other where the leader is, and keep in
# mind which they were told are committed.
my ($clients, $next_id, %acknowledged) = (40, 0);

sub leader
{
	my ($leading) = grep { status_of($_->node, 'primary') == 200 } @gates;
	return $leading;
}

# Lets them work until the function returns true, and then to the end of what they
# have begun.
sub work_until
{
	my ($done) = @_;
	my (@crowd, $gate);

	my $deadline = time + 6 * $ttl;
	my $finishing = 0;
	while (1)
	{
		$finishing ||= $done->();
		die "timed out\n" if time > $deadline;
		$gate = leader() if !$finishing && grep { !$_ || $_->{session}->closed } @crowd[ 0 .. $clients - 1 ];
		for my $client (@crowd[ 0 .. $clients - 1 ])
		{
			if ($client && defined $client->{id} && $client->{session}->done)
			{
				my $sqlstate = $client->{session}->sqlstate;
				$acknowledged{ $client->{id} } = 1 if $sqlstate eq '00000';
				undef $client->{id};
				undef $client if $client->{session}->closed || $sqlstate ne '00000';
			}
			next if $finishing;
			if (!$client && $gate)
			{
				my $session = $gate->session(user => 'web', may_fail => 1);
				$client = { session => $session } if !$session->closed;
			}
			next if !$client || defined $client->{id};
			$client->{id} = $next_id++;
			$client->{session}->start("INSERT INTO acknowledged VALUES ($client->{id})");
		}
		last if $finishing && !grep { $_ && defined $_->{id} } @crowd;
		usleep(1000);
	}
	$_->{session}->quit foreach grep { $_ } @crowd;
	return;
}

sub ok_kept
{
	my ($gate, $what) = @_;

	my %kept = map { $_ => 1 } split /\n/, $gate->value('SELECT id FROM acknowledged');
	is_deeply([ grep { !$kept{$_} } keys %acknowledged ], [], "$what: nothing that was committed is lost");
	note scalar(keys %acknowledged), ' commits acknowledged, ', scalar(keys %kept), ' kept';
	return;
}

# Runs the clients, has the leader change meanwhile, and looks at what came of it.
sub change_leader
{
	my ($what, $change) = @_;
	my $old = leader();
	my ($new) = grep { $_ != $old } @gates;
	my ($queued, $changed, $before) = (0, 0);

	work_until(
		sub {
			if (!$changed)
			{
				$queued ||= eval { $old->value('SELECT waiting > 10 FROM pg_stat_admission_gate') eq 't' };
				return 0 if !$queued || keys %acknowledged < 100;
				$change->($old, $new);
				$changed = 1;
				return 0;
			}
			return 0 if status_of($new->node, 'primary') != 200;
			$before //= keys %acknowledged;
			return keys %acknowledged > $before + 500;
		});
	pass("$what, from a leader with a queue: the other node leads and works");
	$_->{observer} = undef foreach @gates;
	await_status($old->node, 'sync', "$what: the old leader follows");
	ok_kept($new, $what);
	$new->ok_quiet("$what, on the new leader");
	$new->ok_adds_up("$what, on the new leader");
	$old->ok_quiet("$what, on the old leader");
	$old->ok_adds_up("$what, on the old leader");
	return;
}

set_everywhere(\@gates, max_active_backends => 4, lend_after => 100);
change_leader(
	'switchover',
	sub {
		my ($old, $new) = @_;
		start_program(
			'switchover', program('patronictl'), '-c', "$directory/one.json",
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
