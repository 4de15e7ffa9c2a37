# Proves that with a limit of -1 there is none while clients are patient, or while few want a
# CPU; that one begins while time-outs end statements and CPUs are short, is shown and logged,
# and ends when nobody needs it; and that a dry run shows it, but nobody queues.

use strict;
use warnings;
use lib 'test/perl';
use GateTest;

my $burn = 'DO $$ BEGIN LOOP END LOOP; END $$';
my $short = 'DO $$ BEGIN FOR i IN 1..100000 LOOP END LOOP; END $$';

GateTest::use_two_cpus();
my $gate = GateTest->new('cpu_limit', max_active_backends => -1, log_min_wait => '1h');

# Sessions that send a statement over and over, as long as somebody looks
sub crowd
{
	my ($n, $sql, %settings) = @_;
	return map { { session => $gate->session(session => \%settings), sql => $sql } } 1 .. $n;
}

sub keep_busy
{
	for my $one (@_)
	{
		my $session = $one->{session};
		next if $one->{busy} && !$session->done;
		$session->result if $one->{busy};
		$session->start($one->{sql});
		$one->{busy} = 1;
	}
	return;
}

sub ends_crowd { $_->{session}->stop foreach @_; return; }

# The limit in both views; empty if there is none
sub limit
{
	return $gate->value(
		'SELECT CASE WHEN w.cpu_limit = g.max_active AND w.cpu_limit_since <= now() THEN w.cpu_limit::text
			WHEN w.cpu_limit IS NULL AND w.cpu_limit_since IS NULL AND g.max_active = -1 THEN \'none\'
			ELSE \'unclear\' END
		FROM pg_stat_admission_gate g, pg_stat_admission_gate_worker w');
}

# While they are busy, it comes to be so.
sub ok_comes_beside
{
	my ($condition, $what, @crowd) = @_;
	return $gate->ok_comes(sub { keep_busy(@crowd); $condition->() }, $what);
}

# For so many seconds, there is no limit.
sub ok_no_limit
{
	my ($seconds, $what, @crowd) = @_;
	my $end = time + $seconds;
	my %seen;

	while (time < $end)
	{
		keep_busy(@crowd);
		$seen{ limit() } = 1;
		usleep(10_000);
	}
	return is_deeply([ keys %seen ], ['none'], $what);
}

sub logged { return scalar(() = slurp_file($gate->node->logfile) =~ /LOG:  admission limit $_[0]/g); }

my $ends = sub { limit() eq 'none' };

# No evidence, no limit
{
	my @patient = crowd(24, $short);
	ok_no_limit(2, 'patient sessions have no limit', @patient);
	ends_crowd(@patient);
	my @few = crowd(6, $burn, statement_timeout => '50ms');
	ok_no_limit(2, 'nor do few that time-outs end', @few);
	ends_crowd(@few);
	is(logged('began'), 0, 'and the log has none');
}

# Evidence
my @impatient = crowd(24, $burn, statement_timeout => '100ms');
ok_comes_beside(sub { limit() =~ /^\d+$/ },
	'while time-outs end statements and CPUs are short, there is a limit', @impatient);
is($gate->value('SHOW admission_gate.max_active_backends'), '-1', 'which is not that of the setting');
ok_comes_beside(sub { limit() eq '2' }, 'it falls to the number of CPUs', @impatient);
ok_comes_beside(sub { $gate->value('SELECT waiting > 0 FROM pg_stat_admission_gate') eq 't' },
	'the others queue', @impatient);
ok(logged('began: 8 backends at work'), 'the log says that it began');
is(logged('ended'), 0, 'and not that it ended');
ends_crowd(@impatient);
$gate->ok_comes($ends, 'it ends when nobody needs it');
is(logged('ended after'), logged('began'), 'as the log says');

# The gate is off for a moment.
ok_comes_beside(sub { limit() =~ /^\d+$/ }, 'it comes again', @impatient);
ends_crowd(@impatient);
my $began = logged('began');
$gate->set(max_active_backends => $_) foreach 0, -1;
ok_no_limit(1, 'after the gate was off, there is none');
is(logged('began'), $began, 'nor was there one without new evidence');

# A number that the administrator sets
ok_comes_beside(sub { limit() =~ /^\d+$/ }, 'it comes once more', @impatient);
$gate->set(max_active_backends => 20);
is($gate->value('SELECT cpu_limit FROM pg_stat_admission_gate_worker'), '', 'a number that is set replaces it');
ends_crowd(@impatient);

# A dry run
$gate->set(max_active_backends => -1, mode => 'observe');
my $queued = $gate->counter('queued');
my $would_queue = $gate->counter('would_queue');
ok_comes_beside(sub { limit() eq '8' && $gate->counter('would_queue') > $would_queue },
	'a dry run shows a limit, and counts who would have queued', @impatient);
{
	my $end = time + 1;
	while (time < $end) { keep_busy(@impatient); usleep(10_000) }
}
is($gate->counter('queued'), $queued, 'nobody queues');
# As it began, unless these sessions get too little of the CPUs.
like(limit(), qr/^\d$/, 'and the limit stays');
ends_crowd(@impatient);
$gate->ok_comes($ends, 'it ends there, too');
$gate->finish;
