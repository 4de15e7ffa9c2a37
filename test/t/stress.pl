# Proves that the cap and its bookkeeping hold under load: of 200 sessions 2 are at work
# at the same time, counted by themselves and not by the gate.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/../perl";
use GateTest;

my $gate = GateTest->new(
	'stress',
	max_active_backends => 2,
	max_connections => 250,
	log_statement => 'none',
	lend_after => 60_000);

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
	END $$',
	'CREATE TABLE seen (n bigint)');

my @scripts = map { $gate->script($_) } (
	"SELECT at_work();\nINSERT INTO seen SELECT at_work();\n",
	"BEGIN;\nINSERT INTO seen SELECT at_work();\nSELECT at_work();\nCOMMIT;\n");
for my $mode ('simple', 'extended', 'prepared')
{
	$gate->value('TRUNCATE seen');
	command_ok($gate->pgbench('-c', 200, '-j', 4, '-t', 5, '-M', $mode, map { ('-f', $_) } @scripts),
		"200 pgbench clients run at limit 2, $mode protocol");
	is($gate->value('SELECT max(n) FROM seen'),
		'2', "of 200 clients, 2 were at work at the same time and never more, $mode protocol");
}
$gate->finish;
