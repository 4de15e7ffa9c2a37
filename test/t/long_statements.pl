# Proves that long statements give their slots up, pause while short ones work, and go on
# all the same; that they leave nothing behind, however they end; and what is not paused.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use GateTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $gate = GateTest->new(
	'long_statements',
	max_active_backends => 2,
	long_after => 50,
	lend_after => 60_000,
	max_connections => 60,
	max_parallel_workers_per_gather => 0,
	log_statement => 'none');

$gate->value('CREATE TABLE numbers AS SELECT i FROM generate_series(1, 3000) i');
$gate->value('ANALYZE numbers');
$gate->value('CREATE TABLE sale (id int PRIMARY KEY, sold int)');
$gate->value('INSERT INTO sale SELECT id, 0 FROM generate_series(1, 1000) id');

# Reads rows for ever, and for long
my $endless = 'SELECT count(*) FROM numbers a, numbers b, numbers c';
my $long = 'SELECT count(*) FROM numbers a, numbers b';
my $rows = 3000 * 3000;

sub long_state
{
	my ($session) = @_;
	return $gate->state($session) =~ /^(?:long|paused)$/;
}

sub ok_becomes_long
{
	my ($session, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok($gate->await_true(sub { long_state($session) }, 'a long statement'), $what);
}

sub endless
{
	my (%param) = @_;
	my $session = $gate->session(%param);
	$session->start($endless);
	return $session;
}

# Ends it by a cancel request.
sub ok_cancels
{
	my ($session, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$session->cancel;
	is($session->sqlstate, '57014', $what);
	$session->quit;
	return;
}

# Short statements that always want a CPU, and more of them than there are.  They do not
# read rows, so they are never long.
sub short_ones
{
	return map { $gate->worker(@_) } 1 .. 4;
}

sub stop
{
	$gate->stop_worker($_) foreach @_;
	$_->quit foreach @_;
	return;
}

# ----------------------------------------------------------------
# The slot
# ----------------------------------------------------------------

{
	my @sessions = map { endless() } 1 .. 2;
	ok_becomes_long($_, 'a statement that reads for long is long') foreach @sessions;
	is($gate->counter('running'), '0', 'it has no slot any more');
	is($gate->counter('demotions'), '2', 'which is counted');
	is($gate->counter('long + paused'), '2', 'the statements are shown');

	my $short = $gate->session;
	$short->start('SELECT 1');
	$gate->ok_passes($short, 'a short statement finds a slot');
	is( $gate->value(
			"SELECT count(*) FROM pg_stat_admission_gate_backends b JOIN pg_stat_activity a USING (pid)
			WHERE gate_state IN ('long', 'paused') AND query LIKE '%numbers%'"),
		'2',
		'the views tell which queries are long');
	$short->quit;
	ok_cancels($_, 'it can be cancelled') foreach @sessions;
	$gate->ok_quiet('after long statements');
	$gate->ok_adds_up('after long statements');
}

{
	# These nodes yield rows without asking another node for any.
	$gate->value('CREATE TABLE many AS SELECT i FROM generate_series(1, 200000) i');
	$gate->value('CREATE INDEX ON many (i)');
	$gate->value('ANALYZE many');
	# The planner takes it for so many that it hashes the other table.
	$gate->value(
		'CREATE FUNCTION one_row() RETURNS SETOF int ROWS 100000 LANGUAGE plpgsql AS $$ BEGIN RETURN NEXT 0; END $$');
	my $off = 'jit enable_seqscan enable_indexscan enable_indexonlyscan enable_sort enable_nestloop enable_mergejoin';
	my %settings = map { $_ => 'off' } split / /, $off;
	my $slow = sub { "length(repeat(md5(($_[0])::text), $_[1])) > 0" };
	my %plans = (
		'Bitmap Heap Scan' => 'SELECT count(*) FROM many WHERE i > 0 AND ' . $slow->('i', 1000),
		'HashAggregate' => 'SELECT count(*) FROM (SELECT i + 0 FROM numbers GROUP BY i + 0 HAVING '
		  . $slow->('max(i)', 30_000) . ') g',
		'Hash Join' => 'SELECT count(*) FROM one_row() s JOIN numbers n ON s = n.i / 4000 WHERE '
		  . $slow->('s + n.i', 30_000),
		'ProjectSet' => 'SELECT count('
		  . ($slow->('i', 1000) =~ s/ > 0//r)
		  . ') FROM (SELECT generate_series(1, 100000000) i) g');

	for my $plan (sort keys %plans)
	{
		my $session = $gate->session(session => \%settings);
		like($session->query("EXPLAIN $plans{$plan}"), qr/$plan/, "a plan with $plan");
		$session->start($plans{$plan});
		ok_becomes_long($session, 'is long when it takes long');
		ok_cancels($session, 'and can be cancelled');
	}
	$gate->ok_quiet('after these nodes');

	# Statements inside of a function are none of their own.
	$gate->value(
		'CREATE FUNCTION one() RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RETURN (SELECT count(*) FROM sale WHERE id = 1); END $$'
	);
	my $calls = $gate->session;
	$calls->start("SELECT sum(one()) FROM numbers a, numbers b");
	ok_becomes_long($calls, 'a statement that calls functions is long');
	my $demotions = $gate->counter('demotions');
	my $until = $gate->value(q{SELECT clock_timestamp() + interval '300 ms'});
	$gate->await("SELECT clock_timestamp() > '$until'");
	is($gate->counter('demotions'), $demotions, 'and stays so, whatever they do');
	ok_cancels($calls, 'it can be cancelled');

	# A limit holds long ones back, too.
	my @sessions = map { endless() } 1 .. 5;
	ok( $gate->await_true(
			sub { $gate->counter('long + paused = 2 AND running = 2 AND waiting = 1') eq 't' },
			'the limit'),
		'there are no more long ones than slots; others keep theirs, or wait');
	$_->cancel foreach @sessions;
	$_->result foreach @sessions;
	$_->quit foreach @sessions;
	$gate->ok_quiet('after more than the limit');

	# One that begins to write counts again.
	my $writer = $gate->session;
	$writer->start("DO 'BEGIN PERFORM ($long); UPDATE sale SET sold = 2 WHERE id = 1; PERFORM ($endless); END'");
	ok_becomes_long($writer, 'a statement that reads for long first is long');
	ok($gate->await_true(sub { $gate->state($writer) eq 'running' }, 'a slot'),
		'when it has begun to write, it has a slot');
	ok_cancels($writer, 'it can be cancelled');
	$gate->ok_quiet('after one that writes');

	my $session = $gate->session;
	is($session->query($long), $rows, 'a long statement ends');
	$session->quit;
	$gate->ok_quiet('after one that ended');

	my $block = $gate->holder;
	is($block->query($long), $rows, 'a long statement in a transaction ends');
	is($block->query('SELECT 1'), '1', 'the transaction goes on');
	is($gate->state($block), 'running', 'with a slot');
	is($gate->counter('running'), '1', 'that counts');
	$block->query('COMMIT');
	$block->quit;
	$gate->ok_quiet('after the transaction');
}

# ----------------------------------------------------------------
# The pause
# ----------------------------------------------------------------

# Until no more than the share of one CPU goes on
sub ok_pauses
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok($gate->await_true(sub { $gate->counter('long <= 1 AND paused >= 2') eq 't' }, 'pauses'), $what);
}

{
	$gate->set(max_active_backends => -1);
	my @sessions = map { endless() } 1 .. 3;
	ok_becomes_long($_, 'a long statement with an open gate') foreach @sessions;
	ok($gate->await_true(sub { $gate->counter('paused') == 0 }, 'none to pause'),
		'long statements do not pause for each other');

	my @short = short_ones();
	ok_pauses('they pause for short ones, but for one');
	is( $gate->value(
			"SELECT count(*) > 0 FROM pg_stat_activity
			WHERE wait_event_type = 'Extension' AND query LIKE '%numbers%'"),
		't',
		'pg_stat_activity shows the pause');

	my %has_gone_on;
	ok( $gate->await_true(
			sub {
				my ($pid) =
				  $gate->value("SELECT pid FROM pg_stat_admission_gate_backends WHERE gate_state = 'long' LIMIT 1");
				$has_gone_on{$pid} = 1 if $pid;
				return keys %has_gone_on == 3;
			},
			'turns'),
		'each goes on in its turn');
	chomp(my $cpus = `nproc`);
	ok( $gate->await_true(sub { $gate->counter('long = 0 AND paused = 3') eq 't' }, 'a rest'),
		'and none for a while, where a quarter of the CPUs is less than one') if $cpus < 4;

	stop(@short);
	ok($gate->await_true(sub { $gate->counter('paused') == 0 }, 'the end of the pauses'),
		'when the short ones are gone, all go on');

	@short = short_ones();
	ok_pauses('they pause again');
	my ($paused) = grep { $gate->state($_) eq 'paused' } @sessions;
	$paused //= $sessions[0];
	ok_cancels($paused, 'one that pauses can be cancelled');
	@sessions = grep { $_ != $paused } @sessions;
	$gate->await_true(sub { $gate->counter('paused') > 0 }, 'one that pauses');
	($paused) = grep { $gate->state($_) eq 'paused' } @sessions;
	$paused //= $sessions[0];
	$gate->value('SELECT pg_terminate_backend(' . $paused->pid . ')');
	ok($gate->await_true(sub { $gate->counter('long + paused') == 1 }, 'its end'), 'or terminated');
	@sessions = grep { $_ != $paused } @sessions;
	ok_cancels($_, 'the last one is still there') foreach @sessions;
	stop(@short);
	$gate->ok_quiet('after pauses');
	$gate->ok_adds_up('after pauses');
}

{
	# The first that pauses, which is to let the others go on, catches an error and does
	# something else.
	my $catches = $gate->session;
	$catches->start(
		"DO \$\$ BEGIN PERFORM count(*) FROM numbers a, numbers b, numbers c;
		EXCEPTION WHEN query_canceled THEN PERFORM pg_sleep(600); END \$\$");
	my @sessions = map { endless() } 1 .. 2;
	ok_becomes_long($_, 'a long statement') foreach ($catches, @sessions);
	my @short = short_ones();
	$gate->await(
		'SELECT (SELECT pid FROM pg_stat_admission_gate_backends WHERE gate_state = \'paused\'
		ORDER BY state_change LIMIT 1) = ' . $catches->pid . ' AND long = 1 AND paused = 2 FROM pg_stat_admission_gate');
	# A cancel request may signal twice, and so cancel the sleep as well.
	$gate->value('SELECT pg_cancel_backend(' . $catches->pid . ')');
	$gate->await("SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = " . $catches->pid);
	my $goes_on;
	$gate->await_true(
		sub {
			($goes_on) = grep { $gate->state($_) eq 'long' } @sessions;
			return defined $goes_on;
		},
		'one that goes on');
	my ($paused) = grep { $_ != $goes_on } @sessions;
	ok_cancels($goes_on, 'the one that goes on ends');
	ok( $gate->await_true(sub { $gate->state($paused) eq 'long' }, 'its turn'),
		'one that pauses goes on though the first of them does something else');
	ok_cancels($_, 'it can be cancelled') foreach ($paused, $catches);
	stop(@short);
	$gate->ok_quiet('after a caught error');
}

# ----------------------------------------------------------------
# What does not pause
# ----------------------------------------------------------------

# Those sessions do not pause while others do: they are not seen to in the time in which
# each of the others goes on and pauses again.
sub ok_never_pauses
{
	my ($session, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	my %seen;
	my $before = $gate->value('SELECT clock_timestamp()');
	$gate->await_true(
		sub {
			$seen{ $gate->state($session) } = 1;
			$gate->value("SELECT clock_timestamp() > '$before'::timestamptz + interval '2 s'") eq 't';
		},
		'two seconds');
	return ok(!$seen{paused}, $what) || diag join ' ', keys %seen;
}

{
	my @others = map { endless() } 1 .. 3;
	my @short = short_ones();
	ok_pauses('some pause');

	my $writer = $gate->holder;
	$writer->query('UPDATE sale SET sold = 1 WHERE id = 1');
	$writer->start($endless);
	ok_never_pauses($writer, 'a transaction that has written does not');
	is($gate->state($writer), 'running', 'nor does it give its slot up');
	ok_cancels($writer, 'it is there');

	my $off = $gate->session(session => { 'admission_gate.pool' => 'apart' });
	$gate->set(pools => 'apart:');
	$off->start($endless);
	ok_never_pauses($off, 'nor does one of another pool');
	ok_cancels($off, 'it is there');

	# DDL that waits for a statement that pauses does not wait for long.
	my $alter = $gate->session;
	$alter->start('ALTER TABLE numbers ADD COLUMN j int');
	$gate->await_wait_event_type($alter, 'Lock');
	ok($gate->await_true(sub { $gate->counter('paused') == 0 }, 'the end of the pauses'),
		'one whose lock another backend waits for goes on');
	$alter->cancel;
	is($alter->sqlstate, '57014', 'that one waits as without the gate');
	$alter->quit;

	ok_pauses('then they pause again');
	$gate->set(long_after => -1);
	ok($gate->await_true(sub { $gate->counter('paused') == 0 }, 'the end of the pauses'),
		'with long_after = -1 none pauses');
	ok_cancels($_, 'each is still there') foreach @others;
	stop(@short);
	$gate->ok_quiet('after those that do not pause');
}

# ----------------------------------------------------------------
# Ways to run a statement
# ----------------------------------------------------------------

$gate->set(long_after => 50);

for my $way (
	[ 'extended protocol', sub { $_[0]->start_extended($endless) } ],
	[ 'prepared statement', sub { $_[0]->prepare('p', $endless); $_[0]->start_prepared('p') } ],
	[ 'cursor', sub { $_[0]->query('BEGIN'); $_[0]->query("DECLARE c CURSOR FOR $endless"); $_[0]->start('FETCH c') } ],
	[
		'procedure',
		sub {
			$_[0]->query("CREATE PROCEDURE p() LANGUAGE plpgsql AS 'BEGIN PERFORM * FROM ($endless) e; END'");
			$_[0]->start('CALL p()');
		}
	],
	[ 'COPY', sub { $_[0]->start("COPY ($endless) TO STDOUT") } ],
	[
		'parallel query',
		sub {
			$_[0]->query('SET max_parallel_workers_per_gather = 2');
			$_[0]->query('SET parallel_setup_cost = 0');
			$_[0]->query('SET min_parallel_table_scan_size = 0');
			$_[0]->query('SET parallel_leader_participation = off');
			$_[0]->start($endless);
		}
	])
{
	my ($name, $start) = @$way;
	my $session = $gate->session(user => $gate->node->safe_psql('postgres', 'SELECT current_user'));
	my @short = short_ones();
	my @others = map { endless() } 1 .. 2;
	$start->($session);
	ok_becomes_long($session, "$name: is long");
	ok($gate->await_true(sub { $gate->state($session) eq 'paused' }, 'a pause'), "$name: pauses");
	ok($gate->await_true(sub { $gate->state($session) eq 'long' }, 'its turn'), "$name: goes on");
	stop(@short);
	$session->cancel;
	is($session->sqlstate, '57014', "$name: can be cancelled");
	$session->quit;
	ok_cancels($_, "$name: others are there") foreach @others;
	$gate->ok_quiet("after $name");
}

$gate->node->stop;

done_testing();
