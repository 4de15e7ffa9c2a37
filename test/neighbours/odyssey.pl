# Proves that the gate works behind Odyssey in transaction mode: the statements of clients
# queue like any others, what it sends to reset a connection does not if it is told to, and
# clients can log in although the gate is full if the role that asks for their passwords
# bypasses it.

use strict;
use warnings;
use lib 'test/perl';
use GatePooler;
use GateTest;

my $pooler = GatePooler->new('odyssey');
my $gate = $pooler->gate;
my $socket = '.s.PGSQL.' . $gate->node->port;
my $dir = $pooler->host;

# It looks for the server where it has its own socket.
symlink $gate->node->host . "/$socket", "$dir/$socket" or BAIL_OUT("no link to the socket: $!");

# What makes it send DISCARD ALL
my $discard_all = 'pool_discard yes
	pool_reserve_prepared_statement no';

# The rule is for role app, which is trusted unless auth says how to authenticate.  listen and
# storage: lines for these sections.
sub start_odyssey
{
	my ($rule, %more) = @_;
	my $server = 'storage "server"
	pool "transaction"';
	my $auth = $more{auth} // 'authentication "none"';
	$pooler->start(<<"END");
daemonize no
unix_socket_dir "$dir"
unix_socket_mode "0700"
locks_dir "$dir"
enable_online_restart no
bindwith_reuseport no
log_to_stdout yes
log_format "%l %c %m\\n"
log_stats no
listen {
	port @{[ $pooler->port ]}
	@{[ $more{listen} // '' ]}
}
storage "server" {
	type "remote"
	port @{[ $gate->node->port ]}
	@{[ $more{storage} // '' ]}
}
database "app" {
	user "app" {
		$server
		pool_size 5
		$auth
		$rule
	}
}
database "postgres" {
	user "odyssey" {
		$server
		pool_routing "internal"
		authentication "none"
	}
}
END
	return $pooler->await_log(qr/listening on/);
}

# By default, what it resets a connection with is a SELECT, too.
my $holder = $gate->holder;
start_odyssey('');
my $session = $pooler->session;
$session->start('SHOW work_mem');
$gate->await_waiting(1);
like($pooler->queued, qr/^app: .*SELECT pg_advisory_unlock_all/, 'by default, Odyssey queues to reset a connection');
$holder->query('COMMIT');
is($session->finish, '4MB', 'and then the client has its answer');
$session->quit;
$gate->ok_quiet('with the connection reset');

my ($list) = slurp_file('docs/poolers_and_clusters.md') =~ /^ +pool_discard_query "(.*)"$/m;
ok($list, 'docs/poolers_and_clusters.md has a list of commands');
$holder->query('BEGIN');
for my $reset ([ $list, qq{pool_discard_query "$list"} ], [ 'DISCARD ALL', $discard_all ])
{
	my ($sql, $settings) = @$reset;
	start_odyssey($settings);
	$session = $pooler->session;
	$session->query('SHOW work_mem');
	$gate->ok_comes("count(*) = 1 FROM pg_stat_activity WHERE usename = 'app' AND query = '$sql' AND state = 'idle'",
		"this reset passes: $sql");
}
$session->start('SELECT 1');
$pooler->ok_queued('app: SELECT 1', 'the statement of a client queues');
$session->cancel;
is($session->sqlstate, '57014', 'a cancel request gets to it');
is($gate->gauges, '1|0|0', 'and takes it out of the queue');
$pooler->ok_answered_after($holder, 'SELECT 2', '2', 'app: SELECT 2', 'so does the next one', $session);

# It answers a BEGIN by itself, and sends it together with the next statement.
$session->query('BEGIN');
$pooler->ok_answered_after(
	$holder, 'SELECT 3', '3',
	'app: BEGIN;SELECT 3',
	"a client's BEGIN does not get to the server, but queues with the first statement", $session);
$session->query('COMMIT');

# A client that goes
$holder->query('BEGIN');
$session->start('SELECT 4');
$pooler->ok_queued('app: SELECT 4', 'a statement queues');
$session->hang_up;
$gate->ok_comes('sum(waiting) = 0 FROM pg_stat_admission_gate', 'without its client, it leaves the queue');

# Settings of the gate
for my $reset ([ $discard_all, 0 ], [ "pool_discard no\npool_size 1", '1234ms' ])
{
	my ($settings, $shown) = @$reset;
	start_odyssey($settings);
	my ($one, $other) = map { $pooler->session } 1 .. 2;
	$one->query('SET admission_gate.queue_timeout = 1234');
	is($other->query('SHOW admission_gate.queue_timeout'), $shown, 'SET is there for all unless there is a reset');
}
$gate->value('ALTER ROLE app SET admission_gate.queue_timeout = 200');
start_odyssey($discard_all);
$session = $pooler->session;
is($session->start('SELECT 5')->sqlstate, '53000', "a role's queue_timeout is an error");
ok(!$session->closed, 'that the session survives');
is($session->start('BEGIN ISOLATION LEVEL READ COMMITTED')->sqlstate, '00000', 'after a BEGIN with options');
is($session->start('SELECT 5')->sqlstate, '53000', 'the first statement has the error');
$session->query('ROLLBACK');
is($session->query('SHOW work_mem'), '4MB', 'and goes on');
$session->quit;
$gate->value('ALTER ROLE app RESET admission_gate.queue_timeout');

# It looks for a primary in the session of a client, too, and does not wait for long.
my %attributes = (listen => 'target_session_attrs "read-write"');
$gate->set(client_connection_check_interval => 100);
start_odyssey($discard_all, %attributes);
my $queued = $gate->counter('queued');
$session = $pooler->session(may_fail => 1);
ok($session->closed, 'with target_session_attrs, a full gate looks like no primary');
$gate->await_waiting(0);
cmp_ok($gate->counter('queued'), '>', $queued, 'and the question has queued');

$gate->value('CREATE ROLE odyssey LOGIN', 'ALTER ROLE odyssey SET admission_gate.bypass = on');
my $logged = -s $gate->node->logfile;
start_odyssey(
	$discard_all,
	%attributes,
	storage => 'endpoints_status_poll_interval 60000
	watchdog {
		authentication "none"
		storage "server"
		storage_db "postgres"
		storage_user "odyssey"
		pool_routing "internal"
		pool "transaction"
		watchdog_lag_query "SELECT extract(epoch FROM now())::int"
		watchdog_lag_interval 1
	}');
$gate->await_true(sub { slurp_file($gate->node->logfile, $logged) =~ /statement: SELECT pg_is_in_recovery/ },
	'the watchdog of Odyssey');
$session = $pooler->session;
$pooler->ok_answered_after(
	$holder, 'SELECT 6', '6',
	'app: SELECT 6',
	'when a watchdog that bypasses the gate asks in its place, the statement of a client queues', $session);
$session->quit;
$gate->value('ALTER ROLE odyssey RESET admission_gate.bypass');

# Passwords
$pooler->use_passwords;
my %auth = (
	auth => 'authentication "scram-sha-256"
	auth_query "SELECT username, password FROM public.get_auth($1)"
	auth_query_user "odyssey"
	auth_query_db "postgres"');
start_odyssey($discard_all, %auth);
$pooler->ok_answered_after(
	$holder, "SELECT 'first'",
	'first',
	'odyssey: SELECT username, password FROM public.get_auth($1)',
	'without bypass, the auth_query of Odyssey queues');
$gate->value('ALTER ROLE odyssey SET admission_gate.bypass = on');
start_odyssey($discard_all, %auth);
$pooler->ok_answered_after(
	$holder, "SELECT 'second'",
	'second',
	"app: SELECT 'second'",
	'with bypass, it does not, and the statement of the client queues');
$holder->quit;
$pooler->ok_carries_crowd(20, 5);
$pooler->ok_ends;
