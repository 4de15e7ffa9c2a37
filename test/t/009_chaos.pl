# Chaos: proves that nothing gets lost or stuck when everything happens at once.
# Hundreds of sessions of mixed work, while the limit and other settings change
# by reload, sessions are cancelled, terminated, hung up and killed with crash
# restarts, and the server is restarted in immediate mode.  Afterwards every
# session has been answered or told why, the gauges are zero, the totals add
# up, and the server log has no error but the expected.
#
# GATE_CHAOS_SECONDS sets how long it lasts, GATE_SEED repeats a sequence of
# random numbers.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use GateCrowd;
use GateTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $seconds = $ENV{GATE_CHAOS_SECONDS} || 40;

my $gate = GateTest->new(
	'chaos',
	max_active_backends => 5,
	max_connections => 400,
	max_prepared_transactions => 100,
	max_parallel_workers_per_gather => 2,
	autovacuum => 'on',
	autovacuum_naptime => 1,
	deadlock_timeout => '100ms',
	fsync => 'off',
	log_statement => 'none',
	log_line_prefix => '%m [%p] %b %e ');
my $node = $gate->node;
my $crowd = GateCrowd->new($gate, 300);

sub one_of { return $_[ rand @_ ]; }

# Settings that let every session go on sooner or later
my %lending = (lend_on => 'client, lock', lend_after => 100);

my %times = map { $_ => 0 } ('reload', 'cancel', 'terminate', 'hang up', 'crash', 'restart');
my %next = (reload => 0, crash => time + 5, restart => time + 13);

# A restart makes all slots anew.  To see what leaks, there is none near the end.
my $last_restart = time + 0.6 * $seconds;

# Is it time for this again?
sub due
{
	my ($what, $interval) = @_;

	return 0 if time < $next{$what};
	$next{$what} = time + $interval;
	$times{$what}++;
	return 1;
}

sub change_settings
{
	$gate->set_soon(
		max_active_backends => 1 + int rand 50,
		lend_on => one_of('client, lock', 'client', 'lock', 'client, lock, timeout, io, ipc, extension', ''),
		lend_after => one_of(0, 10, 100, 1000, -1),
		max_overtake => one_of(0, 1, 20, 1000),
		turn_length => one_of(0, 0, 1, 50, 1000),
		max_queue_length => one_of(-1, -1, -1, 0, 20, 200));
	return;
}

sub disturb
{
	my $session = $crowd->any_session or return;
	my $chance = rand;

	if ($chance < 0.7)
	{
		kill INT => $session->pid;
		$times{cancel}++;
	}
	elsif ($chance < 0.85)
	{
		kill TERM => $session->pid;
		$times{terminate}++;
	}
	else
	{
		$session->hang_up;
		$times{'hang up'}++;
	}
	return;
}

$crowd->work(
	$seconds,
	sub {
		if (due('reload', 1))
		{
			# The server may just be restarting.
			eval { change_settings(); 1 } or undef $gate->{observer};
		}
		if (time < $last_restart && due('crash', 9))
		{
			my $session = $crowd->any_session;
			kill KILL => $session->pid if $session;
		}
		elsif (time < $last_restart && due('restart', 20))
		{
			$gate->restart('immediate');
		}
		disturb() if rand() < 0.5;
	});

ok($gate->await_restart, 'the server is there after the chaos');
$gate->set(%lending, max_active_backends => 2, max_overtake => 20, turn_length => 0, max_queue_length => -1);
is($crowd->finish, 0, 'every session was answered');
my $ends = $crowd->ends;
note 'what happened: ', join ', ', map { "$_ $times{$_}" } sort keys %times;
note 'ends: ', join ', ', map { "$_ $ends->{$_}" } sort keys %$ends;
is(join('; ', $crowd->unexpected_ends), '', 'or was told a good reason');
$gate->await("SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'client backend'", 'all sessions to be gone');
note $gate->report;

$gate->ok_quiet('after the chaos');
$gate->ok_adds_up('after the chaos');

# There is exactly one slot at limit 1.
$gate->set(max_active_backends => 1, lend_after => -1);
my ($first, $second) = map { $gate->session } 1 .. 2;
$first->start('BEGIN');
$gate->ok_passes($first, 'at limit 1, one session is admitted at once');
$second->start('BEGIN');
$gate->ok_waits($second, 'and a second one waits');
$first->query('COMMIT');
$second->finish;
$_->quit foreach ($first, $second);
$gate->ok_quiet('at the end');
$node->stop;

# The server log, line by line
my %unexpected;
foreach my $line (split /\n/, slurp_file($node->logfile))
{
	if (my ($sqlstate, $message) = $line =~ / ([0-9A-Z]{5}) ((?:ERROR|FATAL|PANIC): .*)/)
	{
		$unexpected{"$sqlstate $message"}++ if !GateCrowd::is_expected($sqlstate, $message);
	}
	$unexpected{$line}++ if $line =~ /TRAP|was terminated by signal (?!9:)|WARNING:.*(snapshot|leak|buffer)/;
}
is(join("\n", sort keys %unexpected), '', 'the server log has no error but the expected');

done_testing();
