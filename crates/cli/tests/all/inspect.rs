//! `messina inspect` on sstables written by Cassandra: its output as lines and as JSON, and its
//! exit status.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

fn fixture(name: &str, file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../sstable/tests/fixtures").join(name).join(file)
}

/// Whether the command succeeded, and its standard output followed by its standard error.
fn inspect(arguments: &[&str], files: &[PathBuf]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_messina"));
    let done = command.arg("inspect").args(arguments).args(files).output().expect("it runs");
    let text = [done.stdout, done.stderr].concat();
    (done.status.success(), String::from_utf8(text).expect("UTF-8"))
}

fn parsed(arguments: &[&str], file: &Path) -> Value {
    let (succeeded, text) = inspect(arguments, &[file.to_path_buf()]);
    assert!(succeeded, "{text}");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn metadata_says_what_the_sstable_is() {
    let file = fixture("cassandra-nb-clustering", "nb-1-big-Data.db");
    let found = parsed(&["metadata", "--json"], &file);
    assert_eq!((&found["version"], &found["generation"]), (&"nb".into(), &"1".into()));
    assert_eq!(found["compression"]["class"], "LZ4Compressor");
    assert_eq!(found["compression"]["chunk_bytes"], 4096);
    assert_eq!(found["all_components_have_checksums"], false);
    assert_eq!(found["schema"]["clustering"][0], "int DESC");
    let bytes = std::fs::metadata(&file).expect("it is there").len();
    assert_eq!(found["components"]["Data.db"], bytes);
    assert_eq!(found["partitions"], found["estimated_distinct_keys"]);
    // Any file of the sstable is accepted.
    assert_eq!(
        parsed(&["metadata", "--json"], &fixture("cassandra-nb-clustering", "nb-1-big-TOC.txt"))["rows"],
        found["rows"]
    );
    let (succeeded, lines) = inspect(&["metadata"], &[file]);
    assert!(succeeded && lines.contains("\nversion: nb\n") && lines.contains("\n  class: LZ4Compressor\n"), "{lines}");
}

#[test]
fn the_index_has_every_partition_and_the_blocks_of_large_ones() {
    let file = fixture("cassandra-me-wide", "me-1-big-Data.db");
    let (index, metadata) = (parsed(&["index", "--json"], &file), parsed(&["metadata", "--json"], &file));
    let entries = index.as_array().expect("a list");
    assert_eq!(entries.len() as u64, metadata["partitions"].as_u64().expect("a number"));
    let blocks = entries
        .iter()
        .filter_map(|entry| entry["promoted_index"]["blocks"].as_array())
        .max_by_key(|blocks| blocks.len());
    let blocks = blocks.expect("a large partition");
    assert_eq!(blocks.len(), 5);
    // Each block starts where the previous one ends.
    assert!(blocks.windows(2).all(|pair| pair[0]["end"] == pair[1]["start"]));
    let summary = parsed(&["summary", "--json"], &file);
    assert_eq!(summary["min_index_interval"], 128);
    assert_eq!(summary["entries"][0]["key"], entries[0]["key"]);
    assert_eq!(summary["entries"][0]["index_position"], 0);
    for command in ["index", "summary"] {
        let (succeeded, lines) = inspect(&[command], std::slice::from_ref(&file));
        assert!(succeeded && lines.lines().count() > 2, "{lines}");
    }
}

#[test]
fn verify_distinguishes_sound_from_damaged_sstables() {
    let sound = fixture("cassandra-me-ranges", "me-1-big-Data.db");
    let scratch = test_support::Scratch::new("inspect");
    for entry in std::fs::read_dir(fixture("cassandra-me-ranges", "")).expect("a folder") {
        let path = entry.expect("an entry").path();
        std::fs::copy(&path, scratch.join(path.file_name().expect("a name"))).expect("copied");
    }
    let damaged = scratch.join("me-1-big-Data.db");
    let mut bytes = std::fs::read(&damaged).expect("readable");
    bytes[40] ^= 1;
    std::fs::write(&damaged, bytes).expect("written");

    let (succeeded, lines) = inspect(&["verify"], &[sound.clone(), damaged.clone()]);
    assert!(!succeeded && lines.contains("sound: 3 partitions") && lines.contains("1 of 2 sstables"), "{lines}");
    let (_, lines) = inspect(&["verify", "--json"], &[sound, damaged.clone()]);
    let found: Vec<Value> = lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert_eq!((&found[0]["sound"], &found[1]["sound"]), (&true.into(), &false.into()));
    assert!(found[1]["error"].as_str().is_some_and(|why| why.contains("Data.db")), "{lines}");
    // Damaged rows are not printed as valid ones.
    let (succeeded, lines) = inspect(&["dump"], &[damaged]);
    assert!(!succeeded && lines.contains("corrupt file"), "{lines}");
}

#[test]
fn newer_formats_and_other_files_are_refused_by_name() {
    for (name, file, why) in [
        ("cassandra-oa-basic", "oa-1-big-Data.db", "oa (big), of Cassandra 5"),
        ("cassandra-da-basic", "da-1-bti-Data.db", "da (bti), of Cassandra 5"),
        ("cassandra-me-basic", "expected.json", "not named like a file of an sstable"),
        ("cassandra-me-basic", "me-2-big-Data.db", "missing"),
    ] {
        for command in ["dump", "verify", "metadata", "index", "summary"] {
            let (succeeded, text) = inspect(&[command], &[fixture(name, file)]);
            assert!(!succeeded && text.contains(why), "{command} {file}: {text}");
        }
    }
}

/// A reader that goes away, such as `head`, is not a failure. The status of `verify` says what it
/// found.
#[test]
fn output_without_a_reader_is_not_a_failure() {
    let status = |arguments: &[&str], files: &[PathBuf]| {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_messina"));
        let command = command.arg("inspect").args(arguments).args(files).stdout(writer);
        let done = command.output().expect("it runs");
        (done.status.code(), String::from_utf8(done.stderr).expect("UTF-8"))
    };
    let file = [fixture("cassandra-me-wide", "me-1-big-Data.db")];
    for command in ["dump", "verify", "metadata", "index", "summary"] {
        assert_eq!(status(&[command], &file), (Some(0), String::new()), "{command}");
        assert_eq!(status(&[command, "--json"], &file), (Some(0), String::new()), "{command} --json");
    }
    let damaged = fixture("cassandra-me-wide", "me-2-big-Data.db");
    let (code, error) = status(&["verify"], &[file[0].clone(), damaged]);
    assert!(code == Some(1) && error.contains("1 of 2 sstables cannot be trusted"), "{error}");
}
