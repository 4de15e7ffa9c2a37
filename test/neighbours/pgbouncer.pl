# Proves that the gate works behind pgbouncer in transaction mode: its connections queue
# like any other, and clients can log in although the gate is full if the role that asks
# for their passwords bypasses it.

use strict;
use warnings;
use lib 'test/perl';
use GateTest;

# Not everybody's PATH leads to daemons.
my ($program) = grep { -x } map { "$_/pgbouncer" } split(/:/, $ENV{PATH}), '/usr/sbin';
plan skip_all => 'pgbouncer is not installed' if !$program;
note `$program --version`;

my $gate = GateTest->new('behind_pgbouncer', max_active_backends => 1, idle_after => -1);
$gate->value(
	'CREATE ROLE app LOGIN',
	# As in its manual
	q{CREATE FUNCTION get_auth(name text, OUT username text, OUT password text) LANGUAGE sql SECURITY DEFINER
		SET search_path = pg_catalog AS 'SELECT usename::text, passwd FROM pg_shadow WHERE usename = $1'},
	q{ALTER ROLE app PASSWORD 'secret'},
	'CREATE ROLE pgbouncer LOGIN',
	'REVOKE ALL ON FUNCTION get_auth FROM PUBLIC',
	'GRANT EXECUTE ON FUNCTION get_auth TO pgbouncer',
	'GRANT CREATE ON SCHEMA public TO app');

my $dir = PostgreSQL::Test::Utils::tempdir_short();
my $port = PostgreSQL::Test::Cluster::get_free_port();
my ($pgbouncer, $log, $psql, $answer);

END { local $?; stop_pgbouncer(); }

# Ends it at once, whatever it is doing.
sub stop_pgbouncer { $pgbouncer->kill_kill(grace => 0) if $pgbouncer; undef $pgbouncer; return; }

# Starts it anew, with these settings, too.
sub start_pgbouncer
{
	my ($more) = @_;

	stop_pgbouncer();
	unlink "$dir/settings", "$dir/.s.PGSQL.$port";
	append_to_file("$dir/settings", <<"END");
[databases]
app = host=@{[ $gate->node->host ]} port=@{[ $gate->node->port ]} dbname=postgres
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
	$log = '';
	$pgbouncer = IPC::Run::start([ $program, "$dir/settings" ], '<', \undef, '>&', \$log);
	return $gate->await(sub { $pgbouncer->pump_nb; $log =~ /process up/ }, 'pgbouncer');
}

# What libpq has to know.  pgbouncer takes no options, such as those of make installcheck.
my %login =
  (PGHOST => $dir, PGPORT => $port, PGUSER => 'app', PGPASSWORD => 'secret', PGDATABASE => 'app', PGOPTIONS => '');

# Has psql log in so and send one statement.
sub start_psql
{
	my ($sql) = @_;

	local %ENV = (%ENV, %login);
	$psql = IPC::Run::start([ 'psql', '-XAtq', '-c', $sql ],
		'<', '/dev/null', '>', \$answer, '2>&1', IPC::Run::timeout($GateClient::patience));
	return;
}

sub answer { $psql->finish; chomp $answer; return $answer; }

# Waits until exactly that is in the queue of the server, as "role: statement".
sub ok_queued
{
	my ($expected, $what) = @_;
	my $queued = q{string_agg(usename || ': ' || query, '; ')
		FROM pg_stat_admission_gate_backends b JOIN pg_stat_activity USING (pid) WHERE b.gate_state = 'waiting'};

	return $gate->ok_comes(sub { $gate->value("SELECT $queued") eq $expected }, $what) || diag $log;
}

# The statement is answered when the holder's transaction has ended, which begins here; until
# then, that is in the queue.
sub ok_answered_after
{
	my ($holder, $sql, $expected, $queued, $what) = @_;

	$holder->query('BEGIN');
	start_psql($sql);
	ok_queued($queued, $what);
	$holder->query('COMMIT');
	return is(answer(), $expected, 'and then the client has its answer');
}

# Without a bypass, a client that logs in waits twice.
my $holder = $gate->session;
my $auth_query = 'SELECT username, password FROM public.get_auth($1)';
start_pgbouncer();
ok_answered_after(
	$holder, "SELECT 'first'",
	'first',
	"pgbouncer: $auth_query",
	'without bypass, the auth_query of pgbouncer queues');
$gate->value('ALTER ROLE pgbouncer SET admission_gate.bypass = on');
start_pgbouncer();
ok_answered_after(
	$holder, "SELECT 'second'",
	'second',
	"app: SELECT 'second'",
	'with bypass, it does not, and the statement of the client queues');

# More clients than slots, and than connections
{
	local %ENV = (%ENV, %login);
	$gate->set(max_active_backends => 2, idle_after => 100);
	command_ok([ 'pgbench', '-i', '-q', '-s', '1' ], 'pgbench makes its tables behind pgbouncer');
	my $admitted = $gate->counter('admitted');
	command_ok([ 'pgbench', '-n', '-c', '20', '-t', '50' ], 'pgbench has 20 clients');
	cmp_ok($gate->counter('admitted') - $admitted, '>=', 50 * 20, 'each transaction has met the gate');
	cmp_ok($gate->value("SELECT count(*) FROM pg_stat_activity WHERE usename = 'app'"), '<=', 5, 'in 5 connections');
	$gate->ok_quiet('after pgbench');
}

# What it runs to see whether a connection is alive is a statement like any other.
start_pgbouncer("server_check_query = SELECT 'alive'\nserver_check_delay = 0");
$gate->set(max_active_backends => 1, idle_after => -1);
start_psql("SELECT 'third'");
is(answer(), 'third', 'a client has used a connection');
ok_answered_after(
	$holder, "SELECT 'fourth'",
	'fourth',
	"app: SELECT 'alive'",
	"the next one waits while pgbouncer's server_check_query queues");

# Its query_timeout goes on while a statement queues.  It hangs up then, which the server
# has to look for.
$gate->set(client_connection_check_interval => 100);
start_pgbouncer('query_timeout = 1');
$holder->query('BEGIN');
start_psql("SELECT 'fifth'");
ok_queued("app: SELECT 'fifth'", 'a statement queues');
like(answer(), qr/query.timeout/, "until pgbouncer's query_timeout");
$gate->await_waiting(0);
$holder->quit;
stop_pgbouncer();
$gate->finish;
