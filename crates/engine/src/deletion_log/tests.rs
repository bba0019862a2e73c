//! Replacements, interrupted at every step.

use super::*;
use test_support::Scratch;

async fn sstable(dir: &Path, generation: &str, sealed: bool) {
    for component in ["Data.db", "Index.db", if sealed { TOC } else { TEMPORARY_TOC }] {
        fs::write_durably(&file_of(dir, generation, component), b"x").await.expect("written");
    }
}

async fn names(dir: &Path) -> Vec<String> {
    fs::read_dir(dir).await.expect("readable").into_iter().map(|entry| entry.name).collect()
}

async fn tocs(dir: &Path) -> Vec<String> {
    let all = names(dir).await;
    all.iter().filter_map(|name| component(name)).filter(|(_, c)| *c == TOC).map(|(g, _)| g.to_string()).collect()
}

fn replacement() -> Replacement {
    Replacement { seal: vec!["new1".into(), "new2".into()], delete: vec!["old1".into(), "old2".into()] }
}

async fn before(dir: &Path) {
    for (generation, sealed) in [("old1", true), ("old2", true), ("new1", false), ("new2", false), ("stays", true)] {
        sstable(dir, generation, sealed).await;
    }
}

#[test]
fn a_replacement_seals_and_removes() {
    rt::block_on(async {
        let scratch = Scratch::new("replace");
        before(&scratch).await;
        replace(&scratch, &replacement()).await.expect("replaced");
        assert_eq!(tocs(&scratch).await, ["new1", "new2", "stays"]);
        assert_eq!(names(&scratch).await.len(), 9);
        assert_eq!(finish_pending(&scratch, |_| Sealed::No).await.expect("nothing to do"), Finished::default());
    });
}

/// Every state that a crash between two steps can leave.
#[test]
fn an_interrupted_replacement_is_finished_from_every_step() {
    for step in 0..=6 {
        rt::block_on(async {
            let scratch = Scratch::new(&format!("replace-step{step}"));
            let dir = &scratch;
            before(dir).await;
            let log = dir.join(format!("{PREFIX}a{SUFFIX}"));
            sealed::write(&log, KIND, FORMAT, &replacement()).await.expect("written");
            let seal = |generation| (file_of(dir, generation, TEMPORARY_TOC), file_of(dir, generation, TOC));
            for (at, generation) in [(1, "new1"), (2, "new2")] {
                if step >= at {
                    let (from, to) = seal(generation);
                    fs::rename(&from, &to).await.expect("renamed");
                }
            }
            for (at, file) in [
                (3, file_of(dir, "old1", TOC)),
                (4, file_of(dir, "old1", "Data.db")),
                (5, file_of(dir, "old1", "Index.db")),
                (6, file_of(dir, "old2", TOC)),
            ] {
                if step >= at {
                    fs::remove_file(&file).await.expect("removed");
                }
            }
            finish_pending(dir, |_| Sealed::No).await.expect("finished");
            assert_eq!(tocs(dir).await, ["new1", "new2", "stays"], "step {step}");
            assert_eq!(names(dir).await.len(), 9, "step {step}");
            assert_eq!(finish_pending(dir, |_| Sealed::No).await.expect("again"), Finished::default());
        });
    }
}

#[test]
fn a_replacement_that_never_began_is_undone() {
    rt::block_on(async {
        let scratch = Scratch::new("replace-not-begun");
        let dir = &scratch;
        before(dir).await;
        fs::create_dir_all(&dir.join("snapshots/me-1-big-x")).await.expect("made");
        fs::write_durably(&dir.join("manifest.json"), b"x").await.expect("written");
        fs::write_durably(&dir.join(format!("{PREFIX}a{SUFFIX}.tmp")), b"half").await.expect("written");
        let finished = finish_pending(dir, |_| Sealed::No).await.expect("cleaned");
        assert_eq!(finished.orphans, ["new1", "new2"]);
        assert_eq!(tocs(dir).await, ["old1", "old2", "stays"]);
        assert_eq!(names(dir).await.len(), 9 + 2);
    });
}

#[test]
fn lost_outputs_and_damaged_logs_are_errors() {
    rt::block_on(async {
        let scratch = Scratch::new("replace-lost");
        let dir = &scratch;
        sstable(dir, "old1", true).await;
        let log = dir.join(format!("{PREFIX}a{SUFFIX}"));
        sealed::write(&log, KIND, FORMAT, &replacement()).await.expect("written");
        let error = finish_pending(dir, |_| Sealed::No).await.expect_err("outputs are missing");
        assert!(matches!(error, DeletionLogError::Lost { .. }), "{error}");
        assert_eq!(tocs(dir).await, ["old1"]);
        fs::write_durably(&log, b"messina replacement 1 0\n{}").await.expect("written");
        let error = finish_pending(dir, |_| Sealed::No).await.expect_err("damaged");
        assert!(matches!(error, DeletionLogError::Corrupt { .. }), "{error}");
        let foreign = Replacement { seal: vec![], delete: vec!["../../x".into()] };
        sealed::write(&log, KIND, FORMAT, &foreign).await.expect("written");
        let error = finish_pending(dir, |_| Sealed::No).await.expect_err("not a generation");
        assert!(matches!(error, DeletionLogError::Corrupt { .. }), "{error}");
    });
}

/// The power goes at every write of a replacement and of its finishing: inputs or outputs, never
/// both, never neither.
#[cfg(feature = "sim")]
#[test]
fn a_power_loss_at_any_write_leaves_inputs_or_outputs() {
    use rt::sim::Disk;
    let dir = Path::new("/t");
    let mut both = [0, 0];
    for seed in 0..8 {
        let prepared = Disk::new(seed);
        rt::sim::block_on(seed, &prepared, async {
            fs::create_dir_all(dir).await.expect("made");
            fs::sync_dir(Path::new("/")).await.expect("synced");
            before(dir).await;
        });
        for cut in 1..30 {
            let disk = prepared.fork();
            disk.power_loss_at_write(cut);
            let done = rt::sim::run(seed, &disk, async { replace(dir, &replacement()).await.expect("replaced") });
            for again in 1..4 {
                disk.power_loss_at_write((cut + seed) % 11 + again);
                drop(rt::sim::run(seed, &disk, async { finish_pending(dir, |_| Sealed::No).await.expect("finished") }));
            }
            disk.no_power_loss();
            disk.lose_power();
            rt::sim::block_on(seed, &disk, async {
                finish_pending(dir, |_| Sealed::No).await.expect("finished");
                assert_eq!(finish_pending(dir, |_| Sealed::No).await.expect("again"), Finished::default());
                assert_eq!(names(dir).await.len(), 9, "whole sstables and nothing else");
                let there = tocs(dir).await;
                let replaced = there == ["new1", "new2", "stays"];
                assert!(replaced || (there == ["old1", "old2", "stays"] && done.is_err()), "{there:?}");
                both[usize::from(replaced)] += 1;
            });
        }
    }
    assert!(both[0] > 8 && both[1] > 8, "{both:?}");
}

/// The disk refuses operations for a while, at every operation of a replacement. Only if it did not
/// begin, the inputs are used on, and then a restart leaves them.
#[cfg(feature = "sim")]
#[test]
fn a_replacement_that_did_not_begin_is_not_finished_by_a_restart() {
    use rt::sim::{Disk, Refusal};
    let dir = Path::new("/t");
    let prepared = Disk::new(1);
    rt::sim::block_on(1, &prepared, async {
        fs::create_dir_all(dir).await.expect("made");
        before(dir).await;
    });
    let mut outcomes = [0, 0, 0];
    for refusal in [Refusal::Broken, Refusal::NoDescriptors, Refusal::NoAccess] {
        for (skip, times) in (0..40).flat_map(|skip| (1..4).map(move |times| (skip, times))) {
            let disk = prepared.fork();
            rt::sim::block_on(1, &disk, async {
                disk.refuse_below(dir, refusal, skip, times);
                let replaced = replace(dir, &replacement()).await;
                disk.refuse_nothing();
                finish_pending(dir, |_| Sealed::No).await.expect("finished");
                let there = tocs(dir).await;
                let (inputs, outputs) = (["old1", "old2", "stays"], ["new1", "new2", "stays"]);
                match replaced {
                    Ok(()) => assert_eq!(there, outputs),
                    Err(DeletionLogError::NotBegun { .. }) => assert_eq!(there, inputs, "{refusal:?} {skip} {times}"),
                    Err(_) => assert!(there == inputs || there == outputs, "{there:?}"),
                }
                outcomes[match replaced {
                    Ok(()) => 0,
                    Err(DeletionLogError::NotBegun { .. }) => 1,
                    Err(_) => 2,
                }] += 1;
            });
        }
    }
    assert!(outcomes.iter().all(|count| *count > 3), "{outcomes:?}");
}

const HOUR: std::time::Duration = std::time::Duration::from_secs(3600);

fn modified(path: &Path) -> std::time::SystemTime {
    std::fs::metadata(path).expect("there").modified().expect("a time")
}

/// Sets the time of the last change of a file, as `cp -a` does.
fn change_time(path: &Path, time: std::time::SystemTime) {
    let file = std::fs::File::options().write(true).open(path).expect("opened");
    file.set_modified(time).expect("set");
}

/// An upload of two files, and its identity.
async fn uploaded(dir: &Path) -> UploadedFiles {
    let upload = dir.join(UPLOAD);
    fs::create_dir_all(&upload).await.expect("made");
    let mut files = std::collections::BTreeMap::new();
    for name in ["nb-1-big-Data.db", "nb-1-big-TOC.txt"] {
        let path = upload.join(name);
        fs::write_durably(&path, b"loaded").await.expect("written");
        change_time(&path, modified(&path) - HOUR);
        files.insert(name.to_owned(), FileIdentity::of(&path).await.expect("there"));
    }
    UploadedFiles { prefix: "nb-1-big-".into(), files }
}

/// Only the files that were loaded are removed. Another sstable of the same name stays, entirely.
#[test]
fn a_later_upload_with_the_name_of_a_loaded_one_stays() {
    type Change = fn(&Path);
    let changes: [(&str, Change, usize); 6] = [
        ("nothing", |_| {}, 0),
        // A removal was interrupted.
        ("one removed", |upload| std::fs::remove_file(upload.join("nb-1-big-Data.db")).unwrap(), 0),
        // `cp -a` of the whole data directory.
        (
            "copied",
            |upload| {
                for entry in std::fs::read_dir(upload).unwrap() {
                    let path = entry.unwrap().path();
                    let (text, time) = (std::fs::read(&path).unwrap(), path.metadata().unwrap().modified().unwrap());
                    std::fs::remove_file(&path).unwrap();
                    std::fs::write(&path, text).unwrap();
                    change_time(&path, time);
                }
            },
            0,
        ),
        ("another sstable", |upload| std::fs::write(upload.join("nb-1-big-Data.db"), b"change").unwrap(), 2),
        (
            "of another length",
            |upload| {
                let path = upload.join("nb-1-big-Data.db");
                let time = path.metadata().unwrap().modified().unwrap();
                std::fs::write(&path, b"longer than before").unwrap();
                change_time(&path, time);
            },
            2,
        ),
        ("a file more", |upload| std::fs::write(upload.join("nb-1-big-Other.db"), b"x").unwrap(), 1),
    ];
    for at_start in [false, true] {
        for (what, change, left) in &changes {
            rt::block_on(async {
                let scratch = Scratch::new(&format!("uploads-{at_start}-{}", what.replace(' ', "-")));
                let dir: &Path = &scratch;
                let written = Written {
                    replacement: Replacement::default(),
                    loaded: LoadedUploads::of(vec![uploaded(dir).await]),
                };
                let record = dir.join(format!("{UPLOADS_PREFIX}a{SUFFIX}"));
                sealed::write(&record, KIND, FORMAT, &written).await.expect("written");
                change(&dir.join(UPLOAD));
                match at_start {
                    false => remove_loaded(dir).await.expect("removed"),
                    true => drop(finish_pending(dir, |_| Sealed::No).await.expect("finished")),
                }
                assert_eq!(names(&dir.join(UPLOAD)).await.len(), *left, "{what}");
                assert!(!record.exists(), "{what}: the record is done");
            });
        }
    }
}

/// The records of earlier releases name only the sstables: what is newer than the record is another
/// one.
#[test]
fn a_record_without_files_removes_what_is_older_than_it() {
    for (is_newer, left) in [(false, 0), (true, 2)] {
        rt::block_on(async {
            let scratch = Scratch::new(&format!("uploads-old-record-{is_newer}"));
            let dir: &Path = &scratch;
            uploaded(dir).await;
            let record = dir.join(format!("{UPLOADS_PREFIX}a{SUFFIX}"));
            let old = serde_json::json!({"seal": [], "delete": [], "uploads": ["nb-1-big-"]});
            sealed::write(&record, KIND, FORMAT, &old).await.expect("written");
            if is_newer {
                let data = dir.join(UPLOAD).join("nb-1-big-Data.db");
                change_time(&data, modified(&data) + 2 * HOUR);
            }
            remove_loaded(dir).await.expect("removed");
            assert_eq!(names(&dir.join(UPLOAD)).await.len(), left);
            assert!(!record.exists());
        });
    }
}
