# Proves that a refused BEGIN leaves its transaction open and bound to fail: nothing
# that a client goes on to send is committed, one by one or at all, whatever refused
# it, however it is sent.

use strict;
use warnings;
use lib 'test/perl';
use GateTest;

my $gate = GateTest->new('refused_begin', max_active_backends => 1, idle_after => -1);

$gate->value('CREATE TABLE t (id int PRIMARY KEY, v int)', 'INSERT INTO t VALUES (1, 0), (2, 0)');

# What refuses a BEGIN: settings of the server and of the session, what to do once the
# session waits, and the SQLSTATE
my $cancel = sub { $gate->await_queued($_[0]); $_[0]->cancel };
my %refusals = (
	'queue_timeout' => { session => { 'admission_gate.queue_timeout' => '50ms' }, sqlstate => '53000' },
	'a full queue' => { server => { max_queue_length => 0 }, sqlstate => '53400' },
	'statement_timeout' => { session => { statement_timeout => '500ms' }, sqlstate => '57014' },
	'a cancel' => { act => $cancel, sqlstate => '57014' });

my ($one, $two) = map { "UPDATE t SET v = 1 WHERE id = $_" } 1, 2;

# What is sent, BEGIN first, and what is answered: the SQLSTATE or the tag, and the state of
# the transaction.  "refused" is the SQLSTATE of the refusal.
my @scripts = map { [ split / => / ] } split /\n/, <<"END";
BEGIN; $one; $two; ROLLBACK => BEGIN T, refused E, 25P02 E, ROLLBACK I
BEGIN; $one; $two; COMMIT => BEGIN T, refused E, 25P02 E, ROLLBACK I
BEGIN; SAVEPOINT a; $one; ROLLBACK TO a; $one; COMMIT => BEGIN T, refused E, 25P02 E, 3B001 E, 25P02 E, ROLLBACK I
BEGIN; $one; ROLLBACK AND CHAIN; SHOW work_mem; ROLLBACK => BEGIN T, refused E, ROLLBACK T, SHOW T, ROLLBACK I
BEGIN; COMMIT => BEGIN T, refused I
BEGIN; NOTIFY ch; SET LOCAL work_mem = 1000; COMMIT => BEGIN T, NOTIFY T, SET T, refused I
BEGIN; NOTIFY ch; PREPARE TRANSACTION 'p' => BEGIN T, NOTIFY T, refused I
BEGIN; NOTIFY ch; ROLLBACK => BEGIN T, NOTIFY T, ROLLBACK I
END
push @scripts, map {
	[
		"START TRANSACTION ISOLATION LEVEL $_; SHOW work_mem; SET LOCAL work_mem = 1000; SELECT sum(v) FROM t; COMMIT",
		'START TRANSACTION T, SHOW T, SET T, refused E, ROLLBACK I'
	]
} 'READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE';

# Sends the statements one by one, by that method; the first one is refused by that.
sub answers
{
	my ($session, $refusal, $start, @statements) = @_;

	return join ', ', map {
		$session->$start($_);
		$refusal->{act}->($session) if $refusal->{act} && $_ eq $statements[0];
		my $result = $session->result;
		my $end = $result->{error} ? $result->{error}{C} : $result->{tags}[-1] // '';
		($end eq ($refusal->{sqlstate} // '') ? 'refused' : $end) . " $result->{status}";
	} @statements;
}

sub ok_unchanged { return is($gate->value('SELECT sum(v) FROM t'), '0', "$_[0]: nothing is committed"); }

for my $what (sort keys %refusals)
{
	my $refusal = $refusals{$what};
	my $holder = $gate->holder;
	$gate->set(%{ $refusal->{server} }) if $refusal->{server};
	my $session = $gate->session(session => $refusal->{session} // {});

	for my $script (@scripts)
	{
		my ($statements, $expected) = @$script;
		for my $start ('start', 'start_extended')
		{
			is(answers($session, $refusal, $start, split /; /, $statements), $expected, "$what, $start: $statements");
			ok_unchanged("$what, $start");
		}
	}

	# All in one go, each with its Sync, and all with one
	for my $sync ('each', 'one')
	{
		my @pipeline = ('BEGIN', $one, $two, 'COMMIT');
		for my $i (0 .. $#pipeline)
		{
			$session->parse('', $pipeline[$i])->bind('', '')->execute('');
			$session->sync if $sync eq 'each' || $i == $#pipeline;
		}
		$refusal->{act}->($session) if $refusal->{act};
		my @results = map { $session->result } 1 .. ($sync eq 'each' ? 4 : 1);
		my ($error) = map { $_->{error}{C} } grep { $_->{error} } @results;
		is($error, $refusal->{sqlstate}, "$what, a pipeline with $sync Sync");
		$session->query('ROLLBACK');
		ok_unchanged("$what, a pipeline with $sync Sync");
	}

	# A function called without SQL, as libpq calls those of large objects
	is(answers($session, $refusal, 'start', 'BEGIN'), 'BEGIN T', "$what, a fast-path call: a block");
	$session->call_function($gate->value(q{SELECT 'txid_current()'::regprocedure::oid}))->result;
	is($session->start('COMMIT')->sqlstate, $refusal->{sqlstate}, "$what: its COMMIT fails");

	$gate->set(max_queue_length => -1) if $refusal->{server};
	$holder->query('COMMIT');
	$gate->ok_quiet("after $what");
	$session->query('SET statement_timeout = 0');
	is( answers($session, {}, 'start', 'BEGIN', 'UPDATE t SET v = v WHERE id = 1', 'COMMIT'),
		'BEGIN T, UPDATE 1 T, COMMIT I',
		"$what: the session works afterwards");
}

$gate->finish;
