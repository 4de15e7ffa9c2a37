# Proves that what goes with a release agrees: META.json follows PGXN's
# specification, version 1.0.0, the files it names are there, and every place
# that has a version has the same, released or not; and that the library
# exports no name but those that PostgreSQL calls, and comes without bitcode.  Needs
# no server.

use strict;
use warnings;

use FindBin;
use JSON::PP;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = "$FindBin::RealBin/../..";

sub text { return slurp_file("$top/$_[0]"); }

my $version = qr/\d+\.\d+\.\d+/;

# META.json: what the values have to look like; x_ begins what everybody may add.
my $meta = eval { decode_json(text('META.json')) } or die "META.json: $@";
my %required = (
	name => qr/^[^\s\/\\[:cntrl:]]{2,}$/,
	version => qr/^$version$/,
	abstract => qr/\S/,
	maintainer => qr/\S/,
	license => qr/^(?:postgresql|bsd|mit|apache_2_0)$/,
	release_status => qr/^(?:stable|testing|unstable)$/);
my %optional = map { $_ => 1 } qw(description generated_by provides prereqs meta-spec tags resources no_index);

like($meta->{$_} // '', $required{$_}, "META.json has a valid $_") foreach sort keys %required;
is_deeply([ grep { !$required{$_} && !$optional{$_} && !/^x_/i } sort keys %$meta ], [], 'META.json has no other keys');
is($meta->{'meta-spec'}{version}, '1.0.0', 'META.json names its specification');
is_deeply([ grep { ref || length > 255 || /[\/\\[:cntrl:]]/ } @{ $meta->{tags} } ], [], 'META.json has valid tags');

my $provided = $meta->{provides}{admission_gate};
is_deeply([ keys %{ $meta->{provides} } ], ['admission_gate'], 'META.json provides the extension');
is($provided->{version}, $meta->{version}, 'in the same version');
ok(-f "$top/$provided->{$_}", "and the $_ it names is there") foreach qw(file docfile);

like($meta->{prereqs}{runtime}{requires}{PostgreSQL}, qr/^$version$/, 'and the PostgreSQL that it needs');

# Versions
#
# The extension's version is the release's without the last number.
my ($extension_version) = text('admission_gate.control') =~ /^default_version = '(.*)'$/m;
like($meta->{version}, qr/^\Q$extension_version\E\.\d+$/, 'META.json and the control file agree on the version');
is($provided->{file}, "sql/admission_gate--$extension_version.sql", 'so does the name of the script');

my %also = (
	'src/compat.h' => qr/\.version = "([^"]+)"/,
	'CHANGELOG.md' => qr/^## (\S+)/m);
for my $file (sort keys %also)
{
	my ($found) = text($file) =~ $also{$file};
	is($found, $extension_version, "so does $file");
}
my ($packaged, $distribution) = text('debian/changelog') =~ /^\S+ \((.+?)\) (\S+);/;
is($packaged, $meta->{version}, 'so does debian/changelog');

my $unreleased = text('CHANGELOG.md') =~ /^## \S+ \(unreleased\)$/m;
is($meta->{release_status} ne 'stable', $unreleased, 'META.json and CHANGELOG.md agree on whether it is released');
is($distribution eq 'UNRELEASED', $unreleased, 'so does debian/changelog');

# The library
chomp(my $libraries = qx(pg_config --pkglibdir));
ok(!-e "$libraries/bitcode/admission_gate", 'there is nothing for the JIT compiler to inline');

# All libraries of a server share one name space.
SKIP:
{
	skip('nm is missing', 2) unless grep { -x "$_/nm" } split(/:/, $ENV{PATH});
	open(my $nm, '-|', 'nm', '-D', '--defined-only', "$libraries/admission_gate.so") or die "nm: $!";
	my @symbols = map { (split)[-1] } <$nm>;
	ok(scalar(grep { $_ eq '_PG_init' } @symbols), 'the library exports what PostgreSQL calls');
	is_deeply(
		[ grep { !/^(?:Pg_magic_func|_PG_init|(?:pg_finfo_)?pg_(?:stat_(?:get_)?)?admission_gate\w*)$/ } @symbols ],
		[], 'and nothing else');
}

done_testing();
