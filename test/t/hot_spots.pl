# Proves that sessions which contend for something queue for that, and no others do; that the
# queue ends with the contention; and that a session that has its place there can be cancelled
# and terminated like any other.

use strict;
use warnings;
use lib 'test/perl';
use GateTest;

my $gate = GateTest->new(
	'hot_spots',
	max_active_backends => -1,
	max_connections => 150,
	max_prepared_transactions => 1,
	deadlock_timeout => '100ms',
	log_statement => 'none',
	init => { allows_streaming => 1 },    # commits wait for standbys
	pools => 'web');

# Each piece that shows that nothing forms has a table of its own.
foreach my $table ('sale', 'kept', 'idle', 'prepared', 'other')
{
	$gate->value(
		"CREATE TABLE $table (id int PRIMARY KEY, n int) WITH (fillfactor = 20)",
		"INSERT INTO $table SELECT id, 0 FROM generate_series(1, 100) id");
}

# Each holds the row while it sleeps: others are blocked even where there is one CPU.  The
# slow ones do so for long enough to meet a wait in the queue.
my $hot_row = 'UPDATE sale SET n = n + 1 WHERE id = 1 RETURNING pg_sleep(0.002);';
my $slow_row = 'UPDATE sale SET n = n + 1 WHERE id = 1 RETURNING pg_sleep(0.03);';
my $other_row = "\\set id random(1, 100)\nUPDATE other SET n = n + 1 WHERE id = :id;";

my %of_web = (session => { 'admission_gate.pool' => 'web' });

# Something of the hot spots for which a condition holds; of sale if none is given
sub spots
{
	my ($what, $condition) = @_;
	$condition //= "kind = 'relation' AND relation = 'sale'";
	return $gate->value("SELECT $what FROM pg_stat_admission_gate_hot_spots WHERE $condition");
}

# Without it, nothing of what follows can be shown.
sub await_spot
{
	my ($what, $condition, $of) = @_;
	return $gate->ok_comes(sub { spots("count(*) FILTER (WHERE $condition) = 1", $of) eq 't' }, $what) || die;
}

sub await_queue { my ($what) = @_; return await_spot($what, 'max_active > 0 AND waiting > 0'); }

# Until so many more have been admitted to that pool, and for so many seconds.  Returns
# how often that condition was met at an earlier look.
sub meanwhile
{
	my ($pool, $admissions, $seconds, $condition) = @_;
	my $found = 0;
	my $admitted = $gate->counter('admitted', $pool) + $admissions;
	my $until = $gate->value("SELECT clock_timestamp() + interval '$seconds s'");
	$gate->ok_comes(
		sub {
			$found++ if $condition && $gate->value("SELECT $condition") eq 't';
			return $gate->counter("admitted >= $admitted AND clock_timestamp() > '$until'", $pool) eq 't';
		},
		"$admissions are admitted meanwhile, of pool $pool");
	return $found;
}

my $somebody_waits = 'sum(waiting) > 0 FROM pg_stat_admission_gate';

# Until nothing is left of a hot spot, while others come and go
sub ok_ends
{
	my ($what) = @_;
	my $session = $gate->session(%of_web);
	return $gate->ok_comes(sub { $session->query('SELECT 1'); spots('count(*)', 'true') == 0 }, $what);
}

is(spots('count(*)', 'true'), '0', 'at first, there is no hot spot');

# A row that some want, and others do not
my $bystanders = $gate->crowd(4, $other_row, %of_web);
is(meanwhile('web', 2000, 1, $somebody_waits), '0', 'while nobody contends, nobody waits');
is(spots('count(*)', 'max_active > 0'), '0', 'nor is there a limit');

my $crowd = $gate->crowd(24, $hot_row);
await_queue('where all want the same row, its table is a hot spot with a limit and a queue');
is(spots('ROW(datname, relation, classid, objid, objsubid, since <= now())'),
	'(postgres,sale,,,,t)', 'it is shown as what it is');
await_spot('it lets fewer in than want it', 'max_active < 24 AND contenders > max_active AND running < 24');
await_spot('it counts admissions and waits', 'admitted > 100 AND total_wait_time > 0');
my $event = $gate->value('SHOW server_version_num') >= 170000 ? 'AdmissionGateQueue' : 'Extension';
$gate->ok_comes(
	"count(*) > 0 FROM pg_stat_activity JOIN pg_stat_admission_gate_backends b USING (pid)
	WHERE b.gate_state = 'waiting' AND query LIKE '%sale%' AND wait_event = '$event'",
	'its contenders wait in the queue');
cmp_ok(meanwhile('web', 1000, 0, $somebody_waits), '>', 0, 'others work while they wait');
is($gate->counter("concat_ws(' ', queued, forced, stalls)", 'web'), '0 0 0', 'and none of these has ever waited');
$gate->set(pools => 'web: priority = -1');
meanwhile('web', 1000, 0);
is($gate->counter('queued', 'web'), '0', 'nor does one of a lower priority');
$gate->stop_crowd($bystanders);
$gate->set(pools => 'web', synchronous_standby_names => 'nobody');
$gate->ok_comes(
	"count(*) > 0 FROM pg_stat_activity LEFT JOIN pg_stat_admission_gate_backends USING (pid)
	WHERE wait_event = 'SyncRep' AND gate_state IS NULL",
	'a contender holds no slot while its commit waits for a standby');
$gate->set(synchronous_standby_names => '');
$gate->ok_stops($crowd);
ok_ends('and soon, there is no hot spot any more');

# A block of a session whose last ones all wanted the row waits at BEGIN.  A lone statement
# between them waits for nothing.
$crowd = $gate->crowd(24, join "\n", ("BEGIN;\n$hot_row\nCOMMIT;") x 12, 'SELECT 1 AS ping;');
await_queue('its blocks queue');
my $waits_in = "count(*) > 0 FROM pg_stat_activity JOIN pg_stat_admission_gate_backends b USING (pid)
	WHERE b.gate_state = 'waiting' AND query LIKE";
$gate->ok_comes("$waits_in 'BEGIN%'", 'at BEGIN');
is(meanwhile('default', 3000, 2, "$waits_in '%ping%'"), '0', 'but a lone statement of theirs never does');
$gate->ok_stops($crowd);

# The same sessions move on to another table, where two at a time meet on a row: a mark for
# what they wanted before does not explain that.
$gate->value('CREATE TABLE moved AS SELECT 0 AS moved');
my $moving = join "\n", 'SELECT moved FROM moved \gset', '\set id :client_id / 2 + 1', '\if :moved',
  'UPDATE other SET n = n + 1 WHERE id = :id RETURNING pg_sleep(0.02);', '\else', $hot_row, '\endif';
$crowd = $gate->crowd(24, $moving);
await_queue('a hot spot, before its sessions move on');
$gate->value('UPDATE moved SET moved = 1');
$gate->ok_comes(sub { spots('count(*)') eq '0' }, 'the hot spot that its sessions have left ends');
$gate->ok_stops($crowd);

$crowd = $gate->crowd(24, $slow_row, %of_web);
await_queue('sessions of a pool without max_active contend like others');
{
	my $idle = $gate->session;
	$idle->query('BEGIN', 'SELECT 1', $slow_row);
	$gate->ok_comes(sub { spots('bool_and(running + waiting = 0)') eq 't' }, 'no places behind an idle transaction');
	$idle->query('COMMIT');
}

# One that has its place and waits for the row is told to end; its statement may end before.
for my $function ('pg_cancel_backend', 'pg_terminate_backend')
{
	my $session = $gate->session;
	$gate->ok_comes(
		sub {
			$session->start($slow_row) if $session->done;
			return $gate->activity($session, "CASE WHEN wait_event_type = 'Lock' THEN $function(pid) END") eq 't'
			  && ($session->sqlstate =~ /^57(?:014|P01)$/ || !($session = $gate->session));
		},
		"$function ends a wait for the row");
}
$gate->ok_stops($crowd);
is(spots('count(*)', 'running > 0 OR waiting > 0'), '0', 'nobody has kept a place');
ok_ends('the hot spot ends');

# More things than there is room for, none of which is contended for long: 20 sessions wait
# for two of 40 locks each, by turns.
{
	my $owner = $gate->session;
	$owner->query('SELECT count(pg_advisory_lock(i)) FROM generate_series(1, 41) i');
	$owner->start('DO $$ BEGIN LOOP END LOOP; END $$');
	my $wait_for = 'DO $$ BEGIN SET LOCAL lock_timeout = 300; PERFORM pg_advisory_lock(%s);'
	  . ' EXCEPTION WHEN lock_not_available THEN NULL; END $$;' . "\n";
	my $turns = $gate->crowd(20,
			"\\set a 2 * :client_id + 1\n\\set b 2 * :client_id + 2\n"
		  . sprintf($wait_for, ':a')
		  . sprintf($wait_for, ':b'));
	my $of_locks = q{kind = 'advisory'};
	$gate->ok_comes(sub { spots('count(*)', $of_locks) == 32 }, 'there is room for 32 hot spots');
	my $last = $gate->crowd(1, sprintf($wait_for, '41'));
	$gate->ok_comes(sub { spots('count(*)', "$of_locks AND objid = 41") == 1 },
		'another one has the place of a cold one');
	$gate->stop_crowd($turns, $last);
	$owner->stop;
	$gate->ok_quiet('after many hot spots');
}

# A lock that somebody keeps
my $queued = $gate->counter('queued', 'web');
my %keeps = (kept => 'a session outside the gate', idle => 'an idle transaction', prepared => 'a prepared transaction');
for my $table (sort keys %keeps)
{
	my $who = $keeps{$table};
	my $locker = $gate->session(session => { 'admission_gate.bypass' => $table eq 'kept' ? 'on' : 'off' });
	$locker->query("BEGIN; UPDATE $table SET n = 0 WHERE id = 1");
	$gate->await('SELECT now() - xact_start > interval \'1 s\' FROM pg_stat_activity WHERE pid = ' . $locker->pid);
	$locker->query(q{PREPARE TRANSACTION 'p'}) if $table eq 'prepared';

	# They try again and again to lock that row, and give up each time.
	my $waiters = $gate->crowd(24,
			"DO \$\$ BEGIN SET LOCAL lock_timeout = 80; UPDATE $table SET n = 0 WHERE id = 1;"
		  . ' EXCEPTION WHEN lock_not_available THEN NULL; END $$;');
	my $others = $gate->crowd(4, "\\set id random(2, 100)\nUPDATE $table SET n = n + 1 WHERE id = :id;", %of_web);
	my $forms = "count(*) > 0 FROM pg_stat_admission_gate_hot_spots
		WHERE relation = '$table' AND (max_active > 0 OR waiting > 0)";
	is(meanwhile('web', 2000, 3, $forms), 0, "sessions that wait for a lock that $who keeps do not queue for it");
	is($gate->counter('queued', 'web'), $queued, 'nor do others that want the same table');
	$gate->stop_crowd($others, $waiters);
	$locker->query('COMMIT');
	$gate->end_prepared_transactions;
	$gate->ok_quiet("after $who");
}

# The last resort: all that have a place wait for each other, which nobody is to end soon.
# The first two in the queue would, too, but for a short while only.
$gate->set(deadlock_timeout => 600_000);
{
	my @waiters = map { $gate->session } 1 .. 2;
	my @stuck = map { $gate->holder } 1 .. 8;
	my @inside = map { $gate->holder } 1 .. 2;
	$inside[$_]->query('UPDATE sale SET n = 0 WHERE id = ' . (3 + $_)) foreach 0, 1;
	$stuck[$_]->query("UPDATE sale SET n = 0 WHERE id = $_") foreach 1, 2;
	$stuck[$_]->start('UPDATE sale SET n = 0 WHERE id = ' . ($_ == 1 ? 2 : 1)) foreach 0 .. 7;
	my $others = $gate->crowd(1, $other_row, %of_web);    # somebody has to look
	await_spot('where all wait for each other, there is a limit, too', 'max_active > 0');
	my ($start, $stalls) = (time, $gate->counter('stalls'));

	foreach my $waiter (@waiters)
	{
		# At first, the row need not be known to be hot, or its places are free.
		$gate->ok_comes(
			sub {
				$start = time if $waiter == $waiters[0];
				$waiter->start('UPDATE sale SET n = 0 WHERE id = 1');
				$gate->await(
					sub {
						return $gate->state($waiter) eq 'waiting'
						  || $gate->activity($waiter, q{wait_event_type = 'Lock'}) eq 't';
					},
					'a wait');
				return 1 if $gate->state($waiter) eq 'waiting';
				push @stuck, $waiter;
				$waiter = $gate->session;
				return 0;
			},
			'one that wants the same queues');
	}
	my @entered;
	foreach my $waiter (@waiters)
	{
		$gate->await(sub { $gate->state($waiter) eq 'running' }, 'an entry');
		push @entered, $gate->state($waiter, 'extract(epoch FROM state_change)') - $start;
	}
	cmp_ok($entered[0], '>', 0.9, 'when nobody has entered from this queue for a second');
	cmp_ok($entered[0], '<', 20, 'the first is let in');
	cmp_ok($entered[1], '>', $entered[0] + 1.5, 'the next one after two more');
	is($gate->counter('stalls') - $stalls, 2, 'above the limit');

	# Those that have rows already look for deadlocks sooner than others.
	$inside[$_]->start('UPDATE sale SET n = 0 WHERE id = ' . (4 - $_)) foreach 0, 1;
	is(join(',', sort map { $_->sqlstate } @inside), '00000,40P01', 'a deadlock inside is found soon');
	$_->query('ROLLBACK') foreach @inside;
	is($inside[$_]->query('SHOW deadlock_timeout'), '10min', 'for that transaction only') foreach 0, 1;

	# Nobody does in a dry run.
	$gate->set(mode => 'observe');
	my $dry = $gate->holder;
	$dry->query('UPDATE sale SET n = 0 WHERE id = 50');
	is($dry->query('SHOW deadlock_timeout'), '10min', 'in a dry run, they look as others do');
	$gate->stop_crowd($others);
	$gate->end_sessions;
}
$gate->set(deadlock_timeout => 100, mode => 'enforce');
$gate->ok_quiet('after those that waited for each other');

# Beside a limit, and beside those of pools
$gate->set(max_active_backends => 16);
$crowd = $gate->crowd(24, $hot_row);
await_spot('inside a limit, a hot spot has a lower one', 'max_active <= 8 AND waiting > 0');
$bystanders = $gate->crowd(2, $other_row, %of_web);
# While a trial gives out more places, they have to wait as well.
$gate->ok_comes(
	sub {
		$queued = $gate->counter('queued', 'web');
		meanwhile('web', 500, 0);
		return $gate->counter('queued', 'web') == $queued;
	},
	'others have the slots that it leaves');
$gate->stop_crowd($bystanders);

# Contenders that wait for each other are not at work, but keep their places.
$gate->ok_stops($crowd);
$crowd = $gate->crowd(24, $slow_row);
my $looks = 0;
$gate->ok_comes(
	sub {
		my ($has_idle, $keep_places) = split /\|/, $gate->value(
			'SELECT g.working < g.running AND h.waiting > 0, h.running <= h.max_active
			FROM pg_stat_admission_gate g, pg_stat_admission_gate_hot_spots h
			WHERE pool = \'default\' AND relation = \'sale\'');
		return 0 if ($has_idle // 'f') eq 'f';
		$looks += ($keep_places // 'f') eq 't' ? 1 : -1;    # both change between two looks
		return $looks == 20;
	},
	'contenders that are not at work keep their places');
$gate->ok_stops($crowd);
$gate->set(max_active_backends => -1);

# Off, and only observed
$crowd = $gate->crowd(24, $hot_row);
await_queue('a hot spot');
$gate->set(hot_spots => 'off');
$gate->await('SELECT sum(waiting) = 0 FROM pg_stat_admission_gate');
is(spots('count(*)', 'true'), '0', 'with hot_spots = off, there is none, and nobody waits');
is(meanwhile('default', 300, 2, $somebody_waits), 0, 'and it stays so');
is(spots('count(*)', 'true'), '0', 'none forms');
$gate->set(hot_spots => 'on');
await_queue('with hot_spots = on, it is back');

$gate->set(mode => 'observe');
$gate->await('SELECT sum(waiting) = 0 FROM pg_stat_admission_gate');
my $would_queue = $gate->counter('would_queue');
await_spot('while it is only observed, it is shown with its limit', 'max_active > 0');
$gate->await("SELECT would_queue > $would_queue + 100 FROM pg_stat_admission_gate WHERE pool = 'default'");
is($gate->value("SELECT sum(waiting) FROM pg_stat_admission_gate"), '0', 'nobody waits, but would have');
my $kept = grep { usleep(500_000); spots('max_active > 0') eq 't' } 1 .. 12;
cmp_ok($kept, '>', 6, 'it keeps its limit, for longer than one without a queue would last');
$gate->set(mode => 'enforce');
await_queue('when it is enforced again, its contenders wait');
$gate->ok_stops($crowd);

$gate->finish;
