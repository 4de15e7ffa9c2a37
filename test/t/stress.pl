# Proves the cap and its bookkeeping under load: 200 sessions at limit 2.  First
# the cap itself, counted by the sessions at work and not by the gate; then
# mixed work with random cancels, terminations and disconnections, after which
# every session has been answered, nothing is left behind and the totals add up.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use GateCrowd;
use GateTest;
use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;

my $gate = GateTest->new(
	'stress',
	max_active_backends => 2,
	max_connections => 250,
	max_prepared_transactions => 50,
	max_parallel_workers_per_gather => 2,
	deadlock_timeout => '100ms',
	log_statement => 'none',
	log_line_prefix => '%m [%p] %b %e ',
	lend_after => 60_000);
my $node = $gate->node;

# ----------------------------------------------------------------
# The cap
# ----------------------------------------------------------------

# How many sessions are inside this function: each holds an advisory lock while
# it is, and counts the others'.
$gate->value(
	'CREATE FUNCTION at_work() RETURNS bigint VOLATILE LANGUAGE plpgsql AS $$
	DECLARE n bigint;
	BEGIN
		PERFORM pg_advisory_lock(pg_backend_pid());
		PERFORM pg_sleep(0.001);
		SELECT count(*) INTO n FROM pg_locks WHERE locktype = \'advisory\';
		PERFORM pg_advisory_unlock(pg_backend_pid());
		RETURN n;
	END $$');
$gate->value('CREATE TABLE seen (n bigint)');

my $directory = PostgreSQL::Test::Utils::tempdir();
my %script = (
	lone => "SELECT at_work();\nINSERT INTO seen SELECT at_work();\n",
	block => "BEGIN;\nINSERT INTO seen SELECT at_work();\nSELECT at_work();\nCOMMIT;\n");
append_to_file("$directory/$_", $script{$_}) foreach keys %script;

for my $mode ('simple', 'extended', 'prepared')
{
	$gate->value('TRUNCATE seen');
	$node->command_ok(
		[
			'pgbench', '-n', '-c', '200', '-j', '4', '-t', '5', '-M', $mode,
			'-f', "$directory/lone", '-f', "$directory/block", '-h', $node->host, '-p', $node->port, 'postgres'
		],
		"200 pgbench clients run at limit 2, $mode protocol");
	is($gate->value('SELECT max(n) FROM seen'),
		'2', "of 200 clients, 2 were at work at the same time and never more, $mode protocol");
}
$gate->ok_quiet('after pgbench');
$gate->ok_adds_up('after pgbench');

# ----------------------------------------------------------------
# Mixed work
# ----------------------------------------------------------------

$gate->set(lend_after => 100, pools => 'a: max_active = 1; b: priority = 3; c: max_active = 1, priority = -3');
my $crowd = GateCrowd->new($gate, 100);

# pgbench prepares a script's statements when a client first runs it, and serves
# no other client until that is done.  So it must not meet a table that anybody
# locks exclusively: its other clients, in transactions, would never be done.
$gate->value('CREATE TABLE done (id int)');
append_to_file("$directory/hot", "UPDATE t SET v = v + 1 WHERE id = 1;\n");
append_to_file("$directory/transaction",
	"\\set id random(1, 1000)\nBEGIN;\nSELECT v FROM t WHERE id = :id;\nUPDATE t SET v = v + 1 WHERE id = :id;\nINSERT INTO done VALUES (:id);\nCOMMIT;\n"
);
my ($out, $err) = ('', '');
my $pgbench = IPC::Run::start(
	[
		'pgbench', '-n', '-c', '100', '-j', '2', '-T', '12', '-M', 'prepared', '--max-tries=0',
		'-f', "$directory/hot", '-f', "$directory/transaction", '-h', $node->host, '-p', $node->port, 'postgres'
	],
	'>',
	\$out,
	'2>',
	\$err,
	IPC::Run::timeout($GateClient::patience));

$crowd->work(
	12,
	sub {
		eval { $pgbench->pump_nb };    # it dies if pgbench has, as will be seen
		$crowd->disturb if rand() < 0.5;
	});
$crowd->ok_finishes;
ok(eval { $pgbench->finish }, 'pgbench, which nobody disturbed, ended well') or diag $@, $err;
like($out, qr/number of transactions actually processed: [1-9]/, 'and has done something');
$gate->await("SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'client backend'");
note $gate->report;

$gate->ok_quiet('after mixed work');
$gate->ok_adds_up('after mixed work');

$gate->set(pools => '');
$gate->ok_one_slot;
$node->stop;
$crowd->ok_log;

done_testing();
