# Proves that sessions which sleep inside a statement keep nobody out: a crowd of
# pg_sleep(2000) in a gate of four, and pgbench -S beside it as fast as without.
#
# GATE_SLEEPERS sets how many there are.  Each takes a process, a connection, 1.5 MB
# of memory, and about 20 ms in all.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use GateTest;
use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $sleepers = $ENV{GATE_SLEEPERS} || 200;
my $seconds = 2;

my $gate = GateTest->new(
	'sleepers',
	max_connections => $sleepers + 50,
	log_statement => 'none',
	shared_buffers => '128MB');
my $node = $gate->node;

# Runs pgbench with these arguments and returns its output; nobody of it waits for
# long at the gate.
sub pgbench
{
	my (@arguments) = @_;

	local $ENV{PGOPTIONS} = "-c admission_gate.queue_timeout=${GateClient::patience}s";
	my ($out, $err) = ('', '');
	IPC::Run::run([ 'pgbench', @arguments, '-h', $node->host, '-p', $node->port, 'postgres' ], '>', \$out, '2>', \$err)
	  or die "pgbench failed, perhaps its sessions gave up: $err";
	return $out;
}

# Transactions per second of select-only sessions, twice as many as slots
sub speed
{
	my ($tps) = pgbench('-n', '-S', '-M', 'prepared', '-c', 8, '-j', 2, '-T', $seconds) =~ /^tps = ([\d.]+)/m;
	return $tps;
}

pgbench('-i', '-s', 1, '-q');
my $alone;

$gate->piece(
	"pgbench beside $sleepers sleepers",
	{ max_active_backends => 4, lend_after => 10 },
	sub {
		$alone //= speed();

		my $start = time;
		my @sleepers = map { $gate->session } 1 .. $sleepers;
		note sprintf '%d sessions connected after %.1f s', $sleepers, time - $start;
		$_->start('SELECT pg_sleep(2000)') foreach @sleepers;
		$gate->await("SELECT running + lent = $sleepers FROM pg_stat_admission_gate");
		note sprintf 'and slept after %.1f s', time - $start;
		# The last ones have nobody to lend to.
		cmp_ok($gate->counter('lent'), '>=', $sleepers - 4, 'all but the last sleepers have lent their slots');

		# Compared beside the sleepers, as thousands of processes slow others down by
		# themselves, and not always at the first attempt: perhaps the machine has other
		# work.
		my ($without_gate, $beside);
		for (1 .. 3)
		{
			$gate->set(max_active_backends => 0);
			$without_gate = speed();
			$gate->set(max_active_backends => 4);
			$beside = speed();
			last if $beside > 0.9 * $without_gate;
		}
		note sprintf '%.0f tps alone; beside %d sleepers %.0f without the gate, %.0f with it',
		  $alone, $sleepers, $without_gate, $beside;
		cmp_ok($beside, '>', 0.25 * $without_gate,
			'pgbench -S runs beside them, not much slower than without the gate');
		is($gate->counter('running + lent'), $sleepers, 'they sleep on');
	});

$node->stop;

done_testing();
