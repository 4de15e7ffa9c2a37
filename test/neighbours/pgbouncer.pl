# Proves that the gate works behind pgbouncer in transaction mode: its connections queue
# like any other, and clients can log in although the gate is full if the role that asks
# for their passwords bypasses it.

use strict;
use warnings;
use lib 'test/perl';
use GatePooler;
use GateTest;

my $pooler = GatePooler->new('pgbouncer');
my $gate = $pooler->gate;
$gate->value(
	# As in its manual
	q{CREATE FUNCTION get_auth(name text, OUT username text, OUT password text) LANGUAGE sql SECURITY DEFINER
		SET search_path = pg_catalog AS 'SELECT usename::text, passwd FROM pg_shadow WHERE usename = $1'},
	q{ALTER ROLE app PASSWORD 'secret'},
	'CREATE ROLE pgbouncer LOGIN',
	'REVOKE ALL ON FUNCTION get_auth FROM PUBLIC',
	'GRANT EXECUTE ON FUNCTION get_auth TO pgbouncer',
	'GRANT CREATE ON SCHEMA public TO app');

sub start_pgbouncer
{
	my ($more) = @_;
	$pooler->start(<<"END");
[databases]
app = host=@{[ $gate->node->host ]} port=@{[ $gate->node->port ]} dbname=postgres
[pgbouncer]
listen_addr =
listen_port = @{[ $pooler->port ]}
unix_socket_dir = @{[ $pooler->host ]}
pool_mode = transaction
default_pool_size = 5
auth_type = scram-sha-256
auth_user = pgbouncer
auth_query = SELECT username, password FROM public.get_auth(\$1)
@{[ $more // '' ]}
END
	return $pooler->await_log(qr/process up/);
}

# Without a bypass, a client that logs in waits twice.
my $holder = $gate->session;
start_pgbouncer();
$pooler->ok_answered_after(
	$holder, "SELECT 'first'",
	'first',
	'pgbouncer: SELECT username, password FROM public.get_auth($1)',
	'without bypass, the auth_query of pgbouncer queues');
$gate->value('ALTER ROLE pgbouncer SET admission_gate.bypass = on');
start_pgbouncer();
$pooler->ok_answered_after(
	$holder, "SELECT 'second'",
	'second',
	"app: SELECT 'second'",
	'with bypass, it does not, and the statement of the client queues');
$pooler->ok_carries_crowd(20, 5);

# What it runs to see whether a connection is alive is a statement like any other.
start_pgbouncer("server_check_query = SELECT 'alive'\nserver_check_delay = 0");
$gate->set(max_active_backends => 1, idle_after => -1);
$pooler->start_psql("SELECT 'third'");
is($pooler->answer, 'third', 'a client has used a connection');
$pooler->ok_answered_after(
	$holder, "SELECT 'fourth'",
	'fourth',
	"app: SELECT 'alive'",
	"the next one waits while pgbouncer's server_check_query queues");

# Its query_timeout goes on while a statement queues.  It hangs up then, which the server
# has to look for.
$gate->set(client_connection_check_interval => 100);
start_pgbouncer('query_timeout = 1');
$holder->query('BEGIN');
$pooler->start_psql("SELECT 'fifth'");
$pooler->ok_queued("app: SELECT 'fifth'", 'a statement queues');
like($pooler->answer, qr/query.timeout/, "until pgbouncer's query_timeout");
$gate->await_waiting(0);
$holder->quit;
$pooler->ok_ends;
