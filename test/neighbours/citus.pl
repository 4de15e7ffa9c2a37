# Proves that Citus works with a gate on every node: nothing that one node asks of
# another queues if bypass_application_names has Citus's name for it, and nothing is
# lost when more sessions than slots write to all nodes.  The coordinator has shards
# of its own, so that it is its own worker, too.

use strict;
use warnings;
use lib 'test/perl';
use GateTest;

my $packaged = PostgreSQL::Test::Cluster->new('packaged');
plan skip_all => 'Citus is not installed'
  if !-e $packaged->config_data('--sharedir') . '/extension/citus.control';

{
	my $node = PostgreSQL::Test::Cluster->new('gate_first');
	$node->init;
	$node->append_conf('postgresql.conf', "shared_preload_libraries = 'admission_gate, citus'");
	ok(!$node->start(fail_ok => 1), 'with the gate before Citus, the server does not start');
	like(slurp_file($node->logfile), qr/Citus has to be loaded first/, 'and says why');
}

my $host = $packaged->host;
my %names = (bypass_application_names => '"citus_internal gpid=*"');
my %no_names = (bypass_application_names => '');

my ($coordinator, @workers) = my @nodes = map {
	GateTest->new(
		$_, %names,
		shared_preload_libraries => 'citus, admission_gate',
		max_connections => 200,
		handoff_after => 0,
		lend_after => 60_000,
		deadlock_timeout => '100ms',
		'citus.local_hostname' => $host,
		'citus.node_conninfo' => 'sslmode=disable')
} ('coordinator', 'one', 'two');
my ($port, @worker_ports) = map { $_->node->port } @nodes;

$_->value('CREATE EXTENSION citus') foreach @nodes;
note $coordinator->value('SELECT citus_version()');
$coordinator->value(
	"SELECT citus_set_coordinator_host('$host', $port)",
	(map { "SELECT citus_add_node('$host', $_)" } @worker_ports),
	"SELECT citus_set_node_property('$host', $port, 'shouldhaveshards', true)",
	'CREATE TABLE accounts (id int PRIMARY KEY, v int NOT NULL)',
	q{SELECT create_distributed_table('accounts', 'id', shard_count => 6)},
	'INSERT INTO accounts SELECT i, 0 FROM generate_series(1, 1000) i',
	'CREATE TABLE rates (id int PRIMARY KEY, v int NOT NULL)',
	q{SELECT create_reference_table('rates')},
	'INSERT INTO rates VALUES (1, 0)');
is($coordinator->value("SELECT count(DISTINCT nodeport) FROM citus_shards WHERE table_name = 'accounts'::regclass"),
	3, 'all nodes have shards');

sub set_all { my (%settings) = @_; $_->set(%settings) foreach @nodes; return; }

# How many of Citus's own sessions queue on these nodes
sub internal_waiters
{
	my $waiters = 0;
	$waiters += $_->value(
		"SELECT count(*) FROM pg_stat_admission_gate_backends b JOIN pg_stat_activity USING (pid)
		WHERE b.gate_state = 'waiting' AND application_name LIKE 'citus%'") foreach @_;
	return $waiters;
}

# The session finishes, and has nobody wait for it in a queue.
sub ok_finishes
{
	my ($session, $sql) = @_;

	$session->start($sql);
	my $waiters = 0;
	$coordinator->await_true(sub { $session->done || ($waiters = internal_waiters(@nodes)) },
		'a session to end or wait');
	is($waiters, 0, "nobody waits: $sql") or diag map { $_->report } @nodes;
	$session->cancel if $waiters;
	is($session->sqlstate, '00000', 'and it succeeds');
	return;
}

# A coordinator that is its own worker
{
	my $everywhere = 'SELECT count(*) FROM accounts';
	my $client = $coordinator->session(application_name => 'app');

	set_all(%no_names, max_active_backends => 1);
	$client->start($everywhere);
	$coordinator->ok_comes(sub { internal_waiters($coordinator) },
		'without names, a query waits for the slot that it has itself');
	$client->cancel;
	is($client->sqlstate, '57014', 'until it is cancelled');
	$coordinator->await_waiting(0);

	set_all(lend_after => 100);
	is($client->start($everywhere)->sqlstate, '00000', 'or until it lends its slot');
	set_all(lend_after => 60_000, %names);
	my $admitted = $coordinator->counter('admitted');
	ok_finishes($client, $everywhere);
	is($coordinator->counter('admitted'), $admitted + 1, 'and one slot is all that it takes');
	$client->quit;
}

# Full nodes: who has a slot, or needs none, where a client meets the gate, needs none
# elsewhere.
{
	my @holders = map { $_->holder } @nodes;
	my $administrator = $coordinator->session(session => { 'admission_gate.bypass' => 'on' });
	my $shard = $coordinator->value(
		"SELECT min(shardid) FROM citus_shards WHERE table_name = 'accounts'::regclass AND nodeport = $worker_ports[0]"
	);
	ok_finishes($administrator, $_)
	  foreach (
		'SELECT count(*) FROM accounts',
		'UPDATE accounts SET v = v',
		'UPDATE rates SET v = v',
		'SELECT a.v, r.v FROM accounts a JOIN rates r ON a.id % 2 = r.id',
		'WITH few AS MATERIALIZED (SELECT * FROM accounts LIMIT 5) SELECT count(*) FROM few JOIN accounts USING (v)',
		'ALTER TABLE accounts ADD COLUMN w int',
		'SELECT recover_prepared_transactions()',
		'SELECT * FROM citus_stat_activity',
		'SELECT * FROM citus_check_cluster_node_health()',
		q{SELECT run_command_on_all_nodes('SELECT count(*) FROM pg_class')},
		q{SELECT run_command_on_shards('accounts', 'SELECT count(*) FROM %s')},
		"SELECT citus_move_shard_placement($shard, '$host', $worker_ports[0], '$host', $worker_ports[1], 'block_writes')",
		q{SELECT rebalance_table_shards('accounts', shard_transfer_mode => 'block_writes')});
	$_->quit foreach ($administrator, @holders);
	$_->ok_quiet('after the full nodes') foreach @nodes;
}

# The maintenance daemon looks for deadlocks over all nodes.
{
	my @accounts = map {
		$coordinator->value(
			"SELECT min(i) FROM generate_series(1, 1000) i WHERE get_shard_id_for_distribution_column('accounts', i)
			IN (SELECT shardid FROM citus_shards WHERE nodeport = $_)")
	} @worker_ports;
	$coordinator->set(max_active_backends => 2);
	my @holders = map { $_->holder } @workers;
	my @sessions = map { $coordinator->session } 0 .. 1;
	$sessions[$_]->query("BEGIN; UPDATE accounts SET v = v WHERE id = $accounts[$_]") foreach 0 .. 1;
	$sessions[$_]->start("UPDATE accounts SET v = v WHERE id = $accounts[1 - $_]") foreach 0 .. 1;
	$coordinator->await_true(sub { $sessions[0]->done || $sessions[1]->done }, 'the deadlock to end');
	is(join(' ', sort map { $_->sqlstate } @sessions), '00000 40P01', 'a deadlock over two full nodes is found');
	$_->query('ROLLBACK') foreach @sessions;

	$workers[0]->set(%no_names);
	$workers[0]
	  ->ok_comes(sub { internal_waiters($workers[0]) }, 'without names, the maintenance daemon queues on a full node');
	$_->quit foreach (@sessions, @holders);
	$workers[0]->set(%names);
}

# More sessions than slots: clients of the coordinator and of a worker at once.  Every
# transaction adds 4 to the sum of the accounts.
{
	my $script = $coordinator->script(<<'END');
\set low random(1, 500)
\set high random(501, 1000)
BEGIN;
UPDATE accounts SET v = v + 1 WHERE id = :low;
UPDATE accounts SET v = v + 1 WHERE id = :high;
END;
SELECT count(*), max(v) FROM accounts;
\set id :next + :client_id * 1000
INSERT INTO accounts VALUES (:id, 1), (:id + 1, 1);
\set next :next + 2
END
	set_all(max_active_backends => 2, handoff_after => 20);
	my $sum = $coordinator->value('SELECT sum(v) FROM accounts');
	my $admitted = $workers[1]->counter('admitted');
	my ($clients, $transactions, $said) = (15, 10, '');
	my @options = ('-c', $clients, '-t', $transactions, '--max-tries=1000', '-f', $script);
	my @crowds = map {
		IPC::Run::start(
			$nodes[ $_ - 1 ]->pgbench(@options, '-D', "next=${_}000000"),
			'>&' => \$said,
			IPC::Run::timeout($GateClient::patience))
	} 1, 2;

	my ($waiters, $internal) = (0, 0);
	$coordinator->await_true(
		sub {
			# It dies of a program that has ended meanwhile.
			eval { $_->pump_nb; 1 } || $@ =~ /ended prematurely/ || die $@ foreach @crowds;
			$waiters  += $_->counter('waiting') foreach @nodes;
			$internal += internal_waiters(@nodes);
			return !grep { $_->pumpable } @crowds;
		},
		'pgbench');
	is(scalar(grep { $_->finish } @crowds), 2, 'pgbench finishes on the coordinator and on a worker') or diag $said;
	cmp_ok($waiters, '>', 0, 'clients have waited');
	is($internal, 0, 'and no session of Citus');

	is($coordinator->value('SELECT sum(v) FROM accounts'), $sum + 4 * 2 * $clients * $transactions, 'nothing is lost');
	$_->ok_quiet('after the crowds') foreach @nodes;
	is( $workers[1]->counter('admitted'),
		$admitted + 1,
		'a node without clients of its own has admitted nobody but the test itself');
	is(join(' ', map { $_->value('SELECT count(*) FROM pg_prepared_xacts') } @nodes),
		'0 0 0', 'no transaction is left half done');
}

$_->node->stop foreach @nodes;
done_testing();
