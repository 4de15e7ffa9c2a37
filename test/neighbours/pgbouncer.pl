# Proves that the gate works behind pgbouncer in transaction mode: its connections
# queue like any other, and clients can log in although the gate is full if the role
# that asks for their passwords bypasses it.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use GateTest;
use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;

my ($program) = grep { -x } map { "$_/pgbouncer" } split(/:/, $ENV{PATH}), '/usr/sbin';
plan skip_all => 'pgbouncer is not installed' if !$program;

note `$program --version`;
my $gate = GateTest->new(
	'behind_pgbouncer',
	max_active_backends => 1,
	handoff_after => 0,
	lend_after => 60_000);

# As pgbouncer's manual has it
$gate->value($_)
  foreach (
	'CREATE ROLE pgbouncer LOGIN',
	"CREATE FUNCTION get_auth(name text, OUT username text, OUT password text) LANGUAGE sql SECURITY DEFINER
		SET search_path = pg_catalog AS 'SELECT usename::text, passwd FROM pg_shadow WHERE usename = \$1'",
	'REVOKE ALL ON FUNCTION get_auth FROM PUBLIC',
	'GRANT EXECUTE ON FUNCTION get_auth TO pgbouncer',
	"CREATE ROLE app LOGIN PASSWORD 'secret'",
	'GRANT CREATE ON SCHEMA public TO app');

my $port = 6432;
my $dir = PostgreSQL::Test::Utils::tempdir_short();
my $pgbouncer;

# Its log is what it writes to standard error.
sub start_pgbouncer
{
	my ($more) = @_;
	my $ini = "$dir/pgbouncer.ini";
	unlink $ini;
	append_to_file($ini, <<"END");
[databases]
* = host=@{[ $gate->node->host ]} port=@{[ $gate->node->port ]}
[pgbouncer]
listen_addr =
listen_port = $port
unix_socket_dir = $dir
pool_mode = transaction
default_pool_size = 5
auth_type = scram-sha-256
auth_user = pgbouncer
auth_query = SELECT username, password FROM public.get_auth(\$1)
@{[ $more // '' ]}
END
	$pgbouncer = IPC::Run::start([ $program, $ini ], '<' => \undef, '>' => \my $out, '2>' => "$dir/log");
	$gate->await_true(sub { -S "$dir/.s.PGSQL.$port" && slurp_file("$dir/log") =~ /process up/ }, 'pgbouncer')
	  or BAIL_OUT('pgbouncer does not start: ' . slurp_file("$dir/log"));
	return;
}

sub stop_pgbouncer
{
	$pgbouncer->kill_kill if $pgbouncer;
	undef $pgbouncer;
	return;
}

END { local $?; stop_pgbouncer(); }

my %login = (PGHOST => $dir, PGPORT => $port, PGUSER => 'app', PGPASSWORD => 'secret', PGDATABASE => 'postgres');

# A client that sends one statement
sub start_client
{
	my ($sql) = @_;

	local %ENV = (%ENV, %login);
	my %client = (out => '', err => '');
	$client{run} = IPC::Run::start(
		[ 'psql', '-XAtq', '-c', $sql ],
		'<' => \undef,
		'>' => \$client{out},
		'2>' => \$client{err},
		IPC::Run::timeout($GateClient::patience));
	return \%client;
}

sub answer
{
	my ($client) = @_;

	$client->{run}->finish;
	chomp $client->{out};
	return $client->{out} . $client->{err};
}

sub await_queued_as
{
	my ($role, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	ok( $gate->await_true(
			sub {
				$gate->value(
					"SELECT count(*) FROM pg_stat_admission_gate_backends b JOIN pg_stat_activity USING (pid)
					WHERE usename = '$role' AND b.gate_state = 'waiting'") == 1;
			},
			"role $role in the queue"),
		$what) or diag $gate->report, slurp_file("$dir/log");
	return;
}

# Without a bypass, who logs in waits twice.
start_pgbouncer();
my $holder = $gate->holder;
my $client = start_client("SELECT 'first'");
await_queued_as('pgbouncer', 'without bypass, the auth_query of pgbouncer queues');
$holder->query('COMMIT');
is(answer($client), 'first', 'and then the client has its answer');
stop_pgbouncer();

$gate->value('ALTER ROLE pgbouncer SET admission_gate.bypass = on');
start_pgbouncer();
$holder->query('BEGIN');
$client = start_client("SELECT 'second'");
await_queued_as('app', 'with bypass, it does not, and the statement of the client queues');
is($gate->gauges, '1|0|1', 'nobody else does');
$holder->query('COMMIT');
is(answer($client), 'second', 'and then the client has its answer');
$holder->quit;

# More clients than connections, more connections than slots
{
	local %ENV = (%ENV, %login);
	$gate->set(max_active_backends => 2, lend_after => 100, handoff_after => 20);
	command_ok([ 'pgbench', '-i', '-q', '-s', '1' ], 'pgbench makes its tables behind pgbouncer');
	my $admitted = $gate->counter('admitted');
	command_ok([ 'pgbench', '-n', '-c', '20', '-t', '50' ], 'pgbench has 20 clients');
	cmp_ok($gate->counter('admitted') - $admitted, '>=', 1000, 'each transaction has met the gate');
	cmp_ok($gate->value("SELECT count(*) FROM pg_stat_activity WHERE usename = 'app'"), '<=', 5, 'in 5 connections');
	$gate->ok_quiet('after pgbench');
}

# What it runs to see whether a connection is alive is a statement like any other.
{
	stop_pgbouncer();
	start_pgbouncer("server_check_query = SELECT 'alive'\nserver_check_delay = 0");
	$gate->set(max_active_backends => 1, lend_after => 60_000, handoff_after => 0);
	is(answer(start_client("SELECT 'third'")), 'third', 'a client has used a connection');
	$holder = $gate->holder;
	$client = start_client("SELECT 'fourth'");
	await_queued_as('app', 'the next one waits');
	is( $gate->value(
			"SELECT query FROM pg_stat_activity JOIN pg_stat_admission_gate_backends b USING (pid) WHERE b.gate_state = 'waiting'"
		),
		"SELECT 'alive'",
		"while pgbouncer's server_check_query queues");
	$holder->query('COMMIT');
	is(answer($client), 'fourth', 'and then has its answer');
	$holder->quit;
}

# Its query_timeout goes on while a statement queues.  It hangs up then, which the
# server has to look for.
{
	stop_pgbouncer();
	$gate->set(client_connection_check_interval => 100);
	start_pgbouncer('query_timeout = 1');
	$holder = $gate->holder;
	$client = start_client("SELECT 'fifth'");
	await_queued_as('app', 'a statement queues');
	like(answer($client), qr/query.timeout/, "until pgbouncer's query_timeout");
	$gate->await_waiting(0);
	pass('and with client_connection_check_interval, it leaves the queue');
	$holder->query('COMMIT');
	$holder->quit;
}

stop_pgbouncer();
$gate->ok_quiet('at the end');
$gate->ok_adds_up('at the end');
$gate->node->stop;

done_testing();
