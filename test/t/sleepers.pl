# Proves that sessions which sleep inside a statement keep nobody out: a crowd of
# pg_sleep(2000) in a gate of four, and pgbench -S beside it about as fast as without.
#
# GATE_SLEEPERS sets how many there are.  Each takes a process, a connection, 1.5 MB
# of memory, and about 20 ms in all.

use strict;
use warnings;
use lib 'test/perl';
use GateTest;

my $sleepers = $ENV{GATE_SLEEPERS} || 200;
my $gate =
  GateTest->new('sleepers', max_connections => $sleepers + 50, log_statement => 'none', shared_buffers => '128MB');
$gate->value('CREATE TABLE t AS SELECT 1 AS a');

# Transactions per second of twice as many sessions as slots; none waits for long at the gate.
sub speed
{
	local $ENV{PGOPTIONS} = "-c admission_gate.queue_timeout=${GateClient::patience}s";
	my $script = $gate->script('SELECT a FROM t;');
	my $done =
	  IPC::Run::run($gate->pgbench('-M', 'prepared', '-c', 8, '-j', 2, '-T', 2, '-f', $script), '>&', \my $out);
	die "pgbench failed, perhaps its sessions gave up: $out" if !$done;
	return $out =~ /^tps = ([\d.]+)/m ? $1 : 0;
}

$gate->piece(
	"pgbench beside $sleepers sleepers",
	{ max_active_backends => 4, lend_after => 10 },
	sub {
		my @sleepers = map { $gate->session } 1 .. $sleepers;
		$_->start('SELECT pg_sleep(2000)') foreach @sleepers;
		$gate->await("SELECT running + lent = $sleepers FROM pg_stat_admission_gate");
		# The last ones have nobody to lend to.
		cmp_ok($gate->counter('lent'), '>=', $sleepers - 4, 'all but the last sleepers have lent their slots');

		# Compared beside the sleepers, as thousands of processes slow others down by
		# themselves.
		$gate->set(max_active_backends => 0);
		my $without_gate = speed();
		$gate->set(max_active_backends => 4);
		my $beside = speed();
		note sprintf 'beside %d sleepers: %.0f tps without the gate, %.0f with it', $sleepers, $without_gate, $beside;
		cmp_ok($beside, '>', 0.25 * $without_gate, 'pgbench runs beside them, not much slower than without the gate');
		is($gate->counter('running + lent'), $sleepers, 'they sleep on');
	});

$gate->finish;
