# Proves that nothing gets lost or stuck when everything happens at once.
# Hundreds of sessions of mixed work on a primary with logical replication and
# a standby, while the limit and other settings change by reload, sessions are
# cancelled, terminated, hung up and killed with crash restarts, both servers
# are restarted in immediate mode, and the standby is promoted.  Afterwards every
# session has been answered or told why, the gauges are zero, the totals add
# up, and the server logs have no error but the expected.
#
# GATE_CHAOS_SECONDS sets how long it lasts.

use strict;
use warnings;
use lib 'test/perl';
use GateCrowd;
use GateTest;

my $seconds = $ENV{GATE_CHAOS_SECONDS} || 60;

my $primary = GateTest->new(
	'primary', %GateCrowd::settings,
	max_active_backends => 5,
	max_connections => 500,
	wal_level => 'logical',
	wal_keep_size => '1GB',
	max_standby_streaming_delay => '500ms',
	wal_receiver_status_interval => '100ms',
	init => { allows_streaming => 1 });
my $crowd = GateCrowd->new($primary, 300);
$crowd->connect_to_itself;

# Logical replication, into another database of the same server
$primary->value(
	'CREATE TABLE published (id serial PRIMARY KEY)',
	'CREATE PUBLICATION p FOR TABLE published',
	'CREATE DATABASE subscriber',
	"SELECT pg_create_logical_replication_slot('s', 'pgoutput')");
$crowd->add_scripts(['INSERT INTO published DEFAULT VALUES']);
in_subscriber('CREATE TABLE published (id int PRIMARY KEY)');
in_subscriber('CREATE SUBSCRIPTION s CONNECTION '
	  . sprintf("'host=%s port=%s dbname=postgres'", $primary->node->host, $primary->node->port)
	  . " PUBLICATION p WITH (create_slot = false, slot_name = 's')");

$primary->node->backup('b');
my $node = PostgreSQL::Test::Cluster->new('standby');
$node->init_from_backup($primary->node, 'b', has_streaming => 1);
my $standby = GateTest->around($node);
# After its promotion, it is not to compete for the replication slot.
$standby->configure(max_logical_replication_workers => 0);
$node->start;
my $readers = GateCrowd->readers($standby, 60);

sub in_subscriber
{
	my ($sql) = @_;
	return $primary->session(database => 'subscriber', session => { 'admission_gate.bypass' => 'on' })->query($sql);
}

sub one_of { return $_[ rand @_ ]; }

# When each happens next, and how many times each has
my %next = (
	reload => 0,
	crash => time + 5,
	restart => time + 13,
	'crash of the standby' => time + 7,
	'restart of the standby' => time + 16,
	promotion => time + 0.7 * $seconds);
my %times = map { $_ => 0 } keys %next;

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
	my ($gate) = @_;

	# The server may just be restarting.
	eval {
		$gate->set_soon(
			max_active_backends => one_of(-1, 1 + int rand 50, 1 + int rand 50),
			hot_spots => one_of('on', 'on', 'off'),
			mode => one_of('enforce', 'enforce', 'enforce', 'observe'),
			log_min_wait => one_of(-1, 0, 100),
			lend_after => one_of(0, 10, 100, 1000, -1),
			handoff_after => one_of(0, 1, 20, 1000),
			pools => one_of(
				'',
				'a: max_active = 2, priority = 5; b: max_active = 1',
				'a; c: priority = -5',
				'b: max_active = 3; default: max_active = 5'),
			max_queue_length => one_of(-1, -1, -1, 0, 20, 200));
		1;
	} or undef $gate->{observer};
	return;
}

sub crash
{
	my ($sessions) = @_;
	return kill KILL => map { $_->pid } grep { $_ } $sessions->any_session;
}

my $promoted = 0;

$crowd->work(
	$seconds,
	sub {
		$readers->step;
		if (due('reload', 1))
		{
			change_settings($_) foreach ($primary, $standby);
		}
		if (time < $last_restart)
		{
			crash($crowd) if due('crash', 9);
			crash($readers) if due('crash of the standby', 11);
			$primary->restart('immediate') if due('restart', 20);
			$standby->restart('immediate') if due('restart of the standby', 20);
		}
		elsif (!$promoted && due('promotion', 1))
		{
			# Without waiting: it may need the readers to go on.  A conflict with recovery
			# does not end a statement whose client does not read its result.
			$promoted = eval { $standby->value('SELECT pg_promote(false)') eq 't' }
			  or undef $standby->{observer};
		}
		$crowd->disturb if rand() < 0.5;
		$readers->disturb if rand() < 0.1;
	});
note 'what happened: ', join ', ', map { "$_ $times{$_}" } sort keys %times;

# The readers first, as the promotion may still be going on.
foreach my $sessions ($readers, $crowd)
{
	my $gate = $sessions->gate;
	my $name = $gate->node->name;

	ok($gate->await_restart, "$name: the server is there after the chaos");
	$gate->set(pools => '');
	$gate->set(
		max_active_backends => 2,
		lend_after => 100,
		mode => 'enforce',
		handoff_after => 20,
		max_queue_length => -1);
	$sessions->ok_finishes;
	$gate->await('SELECT NOT pg_is_in_recovery()', 'the promotion');
	$gate->await("SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'client backend'",
		'all sessions to be gone');
	note $gate->report;
	$gate->ok_quiet("$name, after the chaos");
	$gate->ok_one_slot;
}

my $published = $primary->value('SELECT count(*), sum(id) FROM published');
cmp_ok($published, 'ne', '0|', 'something was published');
$primary->ok_comes(sub { in_subscriber('SELECT count(*), sum(id) FROM published') eq $published },
	'logical replication has applied it all');
ok($promoted, 'the standby was promoted');

$_->gate->node->stop foreach ($readers, $crowd);
$_->ok_log foreach ($readers, $crowd);

done_testing();
