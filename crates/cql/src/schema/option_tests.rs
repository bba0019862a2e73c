//! Options in WITH of tables and keyspaces: refusals, stored forms, and warnings.

use super::tests::{CONFIGURATION, INVALID, SYNTAX, World, in_world};
use model::options::RateLimits;

#[test]
fn options_are_checked() {
    in_world(|world| {
        world.all(&["CREATE TABLE there (pk int PRIMARY KEY)"]);
        for (option, code, words) in [
            ("nothing = 1", SYNTAX, "Unknown property 'nothing'"),
            ("comment = 'a' AND comment = 'b'", SYNTAX, "Multiple definition for property 'comment'"),
            ("comment = {'a': 'b'}", SYNTAX, "should be a string"),
            ("gc_grace_seconds = -1", CONFIGURATION, "cannot be smaller than 0"),
            ("gc_grace_seconds = 'x'", SYNTAX, "Invalid integer value x"),
            ("default_time_to_live = 700000000", CONFIGURATION, "less than or equal to 630720000"),
            ("bloom_filter_fp_chance = 0", CONFIGURATION, "must be larger than"),
            ("bloom_filter_fp_chance = NaN", SYNTAX, "Invalid double value"),
            ("crc_check_chance = 1.1", CONFIGURATION, "between 0.0 and 1.0"),
            ("min_index_interval = 0", CONFIGURATION, "must be greater than 0"),
            ("max_index_interval = 64", CONFIGURATION, "must be greater than min_index_interval"),
            ("memtable_flush_period_in_ms = 1", CONFIGURATION, "must be 0 or greater"),
            ("speculative_retry = 'sometimes'", CONFIGURATION, "Invalid value sometimes"),
            ("speculative_retry = '101PERCENTILE'", CONFIGURATION, "Invalid value 101PERCENTILE"),
            ("compaction = {'class': 'Nothing'}", CONFIGURATION, "Unable to find compaction strategy class 'Nothing'"),
            ("compaction = {'min_threshold': '4'}", CONFIGURATION, "Missing sub-option 'class'"),
            (
                "compaction = {'class': 'SizeTieredCompactionStrategy', 'x': '1'}",
                CONFIGURATION,
                "Invalid compaction strategy options",
            ),
            (
                "compaction = {'class': 'SizeTieredCompactionStrategy', 'min_threshold': 1}",
                CONFIGURATION,
                "bigger or equal to 2",
            ),
            (
                "compaction = {'class': 'SizeTieredCompactionStrategy', 'max_threshold': 3}",
                CONFIGURATION,
                "max_threshold value (3)",
            ),
            (
                "compression = {'sstable_compression': 'Nothing'}",
                CONFIGURATION,
                "Unsupported compression class 'Nothing'",
            ),
            ("compression = {'class': 'LZ4Compressor', 'chunk_length_in_kb': 3}", CONFIGURATION, "power of 2"),
            ("compression = {'class': 'LZ4Compressor', 'x': 3}", CONFIGURATION, "Unknown compression option 'x'"),
            ("compression = {'chunk_length_in_kb': 4}", CONFIGURATION, "Missing sub-option 'sstable_compression'"),
            ("caching = {'keys': 'SOME'}", CONFIGURATION, "Invalid value SOME"),
            ("caching = {'x': 'ALL'}", CONFIGURATION, "Invalid caching option: x"),
            ("tombstone_gc = {'mode': 'sometimes'}", CONFIGURATION, "Invalid value"),
            (
                "per_partition_rate_limit = {'x': 1, 'max_reads_per_second': 2, 'y': 1}",
                CONFIGURATION,
                "Unknown keys in map for per_partition_rate_limit extension: x, y",
            ),
            (
                "per_partition_rate_limit = {'max_reads_per_second': -1}",
                CONFIGURATION,
                "Invalid value for max_reads_per_second option: expected a non-negative number",
            ),
            ("per_partition_rate_limit = {'max_writes_per_second': 1.5}", CONFIGURATION, "non-negative number"),
            ("per_partition_rate_limit = {'max_writes_per_second': 'many'}", CONFIGURATION, "non-negative number"),
            ("per_partition_rate_limit = {'max_writes_per_second': ''}", CONFIGURATION, "non-negative number"),
            ("per_partition_rate_limit = {'max_writes_per_second': '+5'}", CONFIGURATION, "non-negative number"),
            (
                "per_partition_rate_limit = {'max_writes_per_second': 4294967296}",
                CONFIGURATION,
                "Invalid value for max_writes_per_second option: out of range accepted by 32-bit numbers",
            ),
            (
                "per_partition_rate_limit = {'max_writes_per_second': 99999999999999999999}",
                CONFIGURATION,
                "out of range",
            ),
            ("per_partition_rate_limit = 5", SYNTAX, "should be a map"),
            (
                "per_partition_rate_limit = {'max_read_kb_per_second': -1}",
                CONFIGURATION,
                "Invalid value for max_read_kb_per_second option: expected a non-negative number",
            ),
            ("per_partition_rate_limit = {'max_write_kb_per_second': 4294967296}", CONFIGURATION, "out of range"),
            (
                "per_partition_rate_limit = {'mode': 'watch'}",
                CONFIGURATION,
                "Invalid value for mode option: expected 'enforce' or 'observe'",
            ),
            ("per_partition_rate_limit = {'max_kb_per_second': 1}", CONFIGURATION, "Unknown keys in map"),
            ("extensions = {'other': 0x00}", CONFIGURATION, "other"),
            ("extensions = {'per_partition_rate_limit': 0x00}", CONFIGURATION, "Invalid value for the extension"),
            ("cdc = {'enabled': true}", INVALID, "not supported yet"),
            ("cdc = {'x': true}", CONFIGURATION, "Invalid CDC option: x"),
            ("tablets = {'x': 1}", CONFIGURATION, "Unknown tablet hint: x"),
            ("synchronous_updates = true", INVALID, "only applicable to materialized views"),
        ] {
            world.refused(&format!("CREATE TABLE t (pk int PRIMARY KEY) WITH {option}"), code, words);
            world.refused(&format!("ALTER TABLE there WITH {option}"), code, words);
        }
    });
}

#[test]
fn options_are_normalized_and_unused_ones_cause_warnings() {
    in_world(|world| {
        let mut number = 0;
        let mut make = |option: &str| {
            number += 1;
            let made = world.run(&format!("CREATE TABLE t{number} (pk int PRIMARY KEY) WITH {option}")).unwrap();
            (world.schema(&format!("t{number}")).options.clone(), made.warnings)
        };
        for silent in [
            "comment = 'x'",
            "gc_grace_seconds = 0",
            "caching = {'keys': 'all', 'rows_per_partition': 'ALL'}",
            "speculative_retry = '99p'",
            "speculative_retry = 'NONE'",
            "speculative_retry = '10ms'",
            "crc_check_chance = 1",
            "read_repair_chance = 0.5",
            "additional_write_policy = '99p'",
            "cdc = {'enabled': 'false'}",
            "compaction = {'class': 'org.apache.cassandra.db.compaction.SizeTieredCompactionStrategy'}",
            "compaction = {'class': 'LeveledCompactionStrategy', 'sstable_size_in_mb': 5, 'fanout_size': 4}",
            "compaction = {'class': 'TimeWindowCompactionStrategy', 'compaction_window_unit': 'HOURS', \
             'expired_sstable_check_frequency_seconds': 60, 'unsafe_aggressive_sstable_expiration': true} \
             AND default_time_to_live = 3600",
            "tombstone_gc = {'mode': 'disabled'}",
            "per_partition_rate_limit = {'max_reads_per_second': 5, 'max_writes_per_second': '4294967295'}",
            "per_partition_rate_limit = {}",
            "extensions = {}",
        ] {
            assert_eq!(make(silent).1, Vec::<String>::new(), "{silent}");
        }
        for (warned, words) in [
            ("crc_check_chance = 0.5", "always checked"),
            ("memtable_flush_period_in_ms = 60000", "memtable_flush_period_in_ms"),
            ("caching = {'keys': 'NONE'}", "caching"),
            ("compaction = {'class': 'IncrementalCompactionStrategy'}", "SizeTieredCompactionStrategy"),
            ("compaction = {'class': 'LeveledCompactionStrategy', 'single_sstable_uplevel': true}", "has no effect"),
            ("compression = {'sstable_compression': 'LZ4WithDictsCompressor'}", "dictionaries"),
            ("tombstone_gc = {'mode': 'repair'}", "timeout"),
            ("compaction = {'class': 'TimeWindowCompactionStrategy'}", "without a default_time_to_live"),
            ("read_repair = 'NONE'", "read_repair"),
        ] {
            let warnings = make(warned).1;
            assert!(warnings.len() == 1 && warnings[0].contains(words), "{warned}: {warnings:?}");
        }
        let none = make("compression = {'enabled': false}").0.compression;
        assert!(none.is_empty(), "{none:?}");
        for other in ["compression = {}", "compression = {'sstable_compression': ''}"] {
            assert_eq!(make(other).0.compression, none, "{other}");
        }
        let deflate = make("compression = {'class': 'DeflateCompressor', 'chunk_length_kb': 16}").0.compression;
        assert_eq!(deflate["sstable_compression"], "org.apache.cassandra.io.compress.DeflateCompressor");
        assert_eq!(deflate["chunk_length_in_kb"], "16");
        assert_eq!(make("speculative_retry = '50p'").0.speculative_retry, "50.0PERCENTILE");
        assert_eq!(make("speculative_retry = '10MS'").0.speculative_retry, "10.00ms");
    });
}

#[test]
fn rate_limits_are_parsed_kept_and_removed() {
    in_world(|world| {
        let limits = |world: &World| world.schema("t").rate_limits();
        let none = RateLimits::default();
        world.all(&["CREATE TABLE t (pk int PRIMARY KEY) WITH per_partition_rate_limit = {'max_reads_per_second': 0}"]);
        assert_eq!(limits(world), RateLimits { reads: Some(0), ..none });
        world.all(&["ALTER TABLE t WITH comment = 'x'"]);
        assert_eq!(limits(world), RateLimits { reads: Some(0), ..none });
        let extension = "0x02000000140000006d61785f72656164735f7065725f7365636f6e640200000031\
                         32150000006d61785f7772697465735f7065725f7365636f6e64010000003"
            .to_owned()
            + "7";
        world.all(&[&format!("ALTER TABLE t WITH extensions = {{'per_partition_rate_limit': {extension}}}")]);
        assert_eq!(limits(world), RateLimits { reads: Some(12), writes: Some(7), ..none });
        world.all(&["ALTER TABLE t WITH extensions = {}"]);
        assert_eq!(limits(world).writes, Some(7));
        world.all(&["ALTER TABLE t WITH per_partition_rate_limit = {'max_writes_per_second': '007'}"]);
        assert_eq!(world.schema("t").options.per_partition_rate_limit["max_writes_per_second"], "7");
        assert_eq!(limits(world), RateLimits { writes: Some(7), ..none });
        let own = "{'mode': 'OBSERVE', 'max_read_kb_per_second': 5, 'max_write_kb_per_second': '6'}";
        world.all(&[&format!("ALTER TABLE t WITH per_partition_rate_limit = {own}")]);
        assert_eq!(limits(world), RateLimits { read_kib: Some(5), write_kib: Some(6), observe: true, ..none });
        world.all(&["ALTER TABLE t WITH per_partition_rate_limit = {'mode': 'enforce', 'max_reads_per_second': 1}"]);
        assert_eq!(limits(world), RateLimits { reads: Some(1), ..none });
        assert_eq!(world.schema("t").options.per_partition_rate_limit.len(), 1, "the default mode is not stored");
        world.all(&["ALTER TABLE t WITH per_partition_rate_limit = {}"]);
        assert_eq!(limits(world), none);
    });
}

#[test]
fn rate_limits_need_every_member() {
    in_world(|world| {
        world.all(&["CREATE TABLE t (pk int PRIMARY KEY)"]);
        world.forget_features();
        let option = "per_partition_rate_limit = {'max_reads_per_second': 5}";
        let why = "Per-partition rate limit is not supported yet by the whole cluster";
        world.refused(&format!("ALTER TABLE t WITH {option}"), CONFIGURATION, why);
        world.refused(&format!("CREATE TABLE u (pk int PRIMARY KEY) WITH {option}"), CONFIGURATION, why);
        world.all(&["ALTER TABLE t WITH comment = 'x'", "ALTER TABLE t WITH per_partition_rate_limit = {}"]);
    });
}

#[test]
fn tablet_hints_count() {
    in_world(|world| {
        for (name, option, count) in [
            ("a", "{'min_tablet_count': 33}", 32),
            ("b", "{'max_tablet_count': 4}", 4),
            ("c", "{'expected_data_size_in_gb': 320}", 64),
        ] {
            world.run(&format!("CREATE TABLE {name} (pk int PRIMARY KEY) WITH tablets = {option}")).unwrap();
            assert_eq!(world.metadata.table("ks", name).unwrap().tablets.count(), count, "{option}");
            let made = world.run(&format!("ALTER TABLE {name} WITH tablets = {option}")).unwrap();
            assert!(made.warnings.len() == 1 && made.warnings[0].contains("existing table"), "{:?}", made.warnings);
        }
    });
}

#[test]
fn compaction_options_are_refused_in_scylladbs_words() {
    in_world(|world| {
        world.all(&["CREATE TABLE t (pk int PRIMARY KEY)"]);
        for (class, option, words) in [
            (
                "SizeTiered",
                "'tombstone_threshold': -0.4",
                "tombstone_threshold value (-0.4) must be between 0.0 and 1.0",
            ),
            (
                "Leveled",
                "'tombstone_compaction_interval': -7",
                "tombstone_compaction_interval value (-7000ms) must be positive",
            ),
            ("Leveled", "'unchecked_tombstone_compaction': 'maybe'", "value (maybe) must be \"true\" or \"false\""),
            ("Leveled", "'enabled': 'certainly'", "enabled value (certainly) must be \"true\" or \"false\""),
            ("SizeTiered", "'min_sstable_size': -1", "min_sstable_size value (-1) must be non negative"),
            ("SizeTiered", "'bucket_low': 0.0", "bucket_low value (0) must be between 0.0 and 1.0"),
            ("SizeTiered", "'bucket_high': 0.7", "bucket_high value (0.7) must be greater than 1.0"),
            ("SizeTiered", "'cold_reads_to_omit': 3.5", "cold_reads_to_omit value (3.5) must be between 0.0 and 1.0"),
            (
                "TimeWindow",
                "'compaction_window_unit': 'SECONDS'",
                "Invalid window unit SECONDS for compaction_window_unit",
            ),
            ("TimeWindow", "'compaction_window_size': -8", "compaction_window_size value (-8) must be greater than 1"),
            ("TimeWindow", "'timestamp_resolution': 'SECONDS'", "Invalid timestamp resolution SECONDS"),
            ("TimeWindow", "'expired_sstable_check_frequency_seconds': -1", "value (-1) must be non negative"),
            ("TimeWindow", "'max_threshold': 1", "max_threshold value (1) must be bigger or equal to 2"),
            ("Leveled", "'sstable_size_in_mb': -5", "sstable_size_in_mb value (-5) must be positive"),
            (
                "Incremental",
                "'space_amplification_goal': 2.2",
                "must be greater than 1.0 and less than or equal to 2.0",
            ),
            (
                "SizeTiered",
                "'abc': -54.54",
                "Invalid compaction strategy options {{abc, -54.54}} for chosen strategy type",
            ),
            (
                "Leveled",
                "'compaction_window_size': 4",
                "Invalid compaction strategy options {{compaction_window_size, 4}}",
            ),
        ] {
            let text = format!("ALTER TABLE t WITH compaction = {{'class': '{class}CompactionStrategy', {option}}}");
            world.refused(&text, CONFIGURATION, words);
        }
        let too_long =
            "ALTER TABLE t WITH compaction = {'class': 'LeveledCompactionStrategy', 'sstable_size_in_mb': 2147483648}";
        world.refused(too_long, SYNTAX, "Invalid integer value 2147483648 for 'sstable_size_in_mb'");
    });
}

#[test]
fn the_tablets_option_of_a_keyspace_is_kept() {
    in_world(|world| {
        let kept = |world: &World| world.metadata.keyspace("k").unwrap().definition.tablets.clone();
        let made = world.run("CREATE KEYSPACE k WITH tablets = {'initial': 4}").unwrap();
        assert!(made.warnings[0].contains("deprecated"));
        world.all(&["CREATE TABLE k.t (pk int PRIMARY KEY)", "ALTER KEYSPACE k WITH durable_writes = true"]);
        assert_eq!(kept(world)["initial"], "4");
        world.refused("ALTER KEYSPACE k WITH tablets = {'enabled': false}", INVALID, "vnode/tablets flavor");
        world.refused("ALTER KEYSPACE k WITH tablets = {'initial': 'x'}", CONFIGURATION, "should be numeric");
        world.refused("ALTER KEYSPACE k WITH tablets = {'x': 1}", CONFIGURATION, "Unrecognized tablets option x");
        world.all(&["ALTER KEYSPACE k WITH tablets = {'enabled': true}"]);
        assert_eq!(kept(world).get("initial"), None);
        let made = world.run("CREATE KEYSPACE without WITH tablets = {'enabled': false}").unwrap();
        assert!(made.warnings[0].contains("no effect"), "{:?}", made.warnings);
    });
}
