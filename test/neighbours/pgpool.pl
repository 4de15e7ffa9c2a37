# Proves that the gate works behind pgpool-II, in its mode for streaming replication: the
# statements of clients queue like any others, and what it asks the server for itself
# does not, if its role bypasses the gate: it never takes a full server for dead.

use strict;
use warnings;
use lib 'test/perl';
use GatePooler;
use GateTest;

my $pooler =
  GatePooler->new('pgpool', end_by => 'INT', log_connections => 'on', client_connection_check_interval => 100);
my $gate = $pooler->gate;
$gate->value('CREATE ROLE pgpool LOGIN', 'GRANT pg_monitor TO pgpool');
$gate->session(user => 'app', database => 'app')->query(map { "CREATE TABLE $_ AS SELECT 1 AS a" } 'known', 'unknown');

# The old and the new name of a setting are both there.
sub start_pgpool
{
	my ($more) = @_;
	my $dir = $pooler->host;
	$pooler->start(<<"END", '-n', '-F', '/dev/null', '-f');
backend_clustering_mode = 'streaming_replication'
listen_addresses = ''
port = @{[ $pooler->port ]}
socket_dir = '$dir'
unix_socket_directories = '$dir'
pcp_listen_addresses = ''
pcp_port = @{[ PostgreSQL::Test::Cluster::get_free_port() ]}
pcp_socket_dir = '$dir'
pid_file_name = '$dir/pid'
logdir = '$dir'
work_dir = '$dir'
backend_hostname0 = '@{[ $gate->node->host ]}'
backend_port0 = @{[ $gate->node->port ]}
num_init_children = 20
sr_check_period = 1
sr_check_user = 'pgpool'
health_check_period = 1
health_check_timeout = 3
health_check_user = 'pgpool'
@{[ $more // '' ]}
END
	return;
}

sub await_start { return $pooler->await_log(qr/pgpool-II successfully started/); }

# Waits until pgpool has connected by itself that often.
sub await_checks
{
	my ($checks) = @_;
	my $logged = -s $gate->node->logfile;
	return $gate->await(
		sub {
			$checks <= (() = slurp_file($gate->node->logfile, $logged) =~ /connection authorized: user=pgpool/g);
		},
		'checks');
}

sub ok_server_up
{
	my ($what) = @_;
	return like($pooler->session->query('SHOW POOL_NODES'), qr/^0\|[^|]*\|\d+\|up\|/, $what) || diag $pooler->log;
}

# Without a bypass, it does not get to know which server is the primary.
my $holder = $gate->holder;
start_pgpool();
$pooler->ok_queued('pgpool: SELECT pg_is_in_recovery()', 'without bypass, pgpool queues when it starts');
$holder->query('COMMIT');
await_start();
$holder->query('BEGIN');
$pooler->ok_queued('pgpool: SELECT pg_is_in_recovery()', 'and whenever it looks at the replication');
$holder->query('COMMIT');
$pooler->stop;

$gate->value('ALTER ROLE pgpool SET admission_gate.bypass = on');
$holder->query('BEGIN');
start_pgpool();
ok(await_start(), 'with bypass, it starts although the gate is full');

# It has questions of its own that it asks in the sessions of its clients.
my $session = $pooler->session;
$session->start('SELECT a FROM known');
$pooler->ok_queued('app: SELECT version()',
	'it asks for the version of the server in the session of a client, and queues');
await_checks(6);
is($gate->gauges, '1|1', 'checks go on while the gate is full, and do not queue');
$holder->query('COMMIT');
is($session->finish, '1', 'then the client has its answer');

$holder->query('BEGIN');
ok_server_up('when it knows the version, it answers although the gate is full');
$session->start('SELECT a FROM known');
$pooler->ok_queued('app: SELECT a FROM known', 'when it knows the table, the statement of the client queues');
$session->cancel;
is($session->sqlstate, '57014', 'a cancel request gets to it');
is($gate->gauges, '1|0', 'and takes it out of the queue');

# If such a question is refused, that ends the session of the client.
for my $queue_timeout (0, 200)
{
	my $client = $pooler->session(options => "-c admission_gate.queue_timeout=$queue_timeout");
	$client->start('SELECT a FROM unknown');
	if (!$queue_timeout)
	{
		$gate->await_waiting(1);
		like(
			$pooler->queued,
			qr/^app: SELECT count\(\*\) FROM pg_class/,
			'pgpool asks about a table it does not know, and queues');
		$client->cancel;
	}
	my $what = $queue_timeout ? 'queue_timeout' : 'a cancel request';
	isnt($client->sqlstate, '00000', "$what ends its question");
	ok($client->closed, 'and with it the session');
	is($gate->gauges, '1|0', 'nothing is left in the queue');
}
$session->query('SET admission_gate.queue_timeout = 200');
is($session->start('SELECT a FROM known')->sqlstate, '53000', 'when pgpool knows the table, queue_timeout is an error');
is($session->start('BEGIN')->sqlstate, '00000', 'after a BEGIN that was refused');
isnt($session->start('SELECT 1')->sqlstate, '00000', 'its next question has the error');
ok($session->closed, 'which ends the session');
ok_server_up('no error has made the server count as down');

# It does not look at its client while it waits for the server.
$holder->query('COMMIT');
$session = $pooler->session;
$session->query('SELECT a FROM known');
$holder->query('BEGIN');
$session->start('SELECT 1');
$pooler->ok_queued('app: SELECT 1', 'a statement queues');
$session->hang_up;
await_checks(4);
is($pooler->queued, 'app: SELECT 1', 'without its client, it still does');
$holder->query('COMMIT');
$gate->ok_quiet('when it has had its turn');

# Between two clients
$holder->query('BEGIN');
$session = $pooler->session;
$session->query('SET admission_gate.queue_timeout = 1234');
$session->quit;
$gate->await(
	"SELECT count(*) > 0 FROM pg_stat_activity WHERE usename = 'app' AND query = 'DISCARD ALL' AND state = 'idle'",
	'the session to be reset');
is($gate->gauges, '1|0', 'DISCARD ALL passes');
$holder->query('COMMIT');

# Without load balancing, it has nothing to ask about tables.
start_pgpool('load_balance_mode = off');
await_start();
$session = $pooler->session;
is($session->query('SELECT 1'), '1', 'pgpool knows the version of the server');
$pooler->ok_answered_after(
	$holder, 'SELECT a FROM unknown',
	'1',
	'app: SELECT a FROM unknown',
	'without load_balance_mode, nothing but the statement of the client queues', $session);
$_->quit foreach ($session, $holder);
$pooler->ok_carries_crowd(15);
$pooler->ok_ends;
