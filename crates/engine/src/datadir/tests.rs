//! Which process may open a data directory, and which of its files survive a power loss.

use super::*;
use model::TableId;
use test_support::Scratch;

#[test]
fn a_directory_is_stamped_once_and_keeps_its_host() {
    rt::block_on(async {
        let scratch = Scratch::new("datadir-stamp");
        let dir = DataDir::open(&scratch, "one", 2).await.expect("fresh");
        assert_eq!(dir.previous_shards, None);
        let host = dir.host_id;
        drop(dir);
        let dir = DataDir::open(&scratch, "one", 5).await.expect("again");
        assert_eq!((dir.host_id, dir.previous_shards), (host, Some(2)));
        drop(dir);
        let dir = DataDir::open(&scratch, "one", 5).await.expect("a third time");
        assert_eq!((dir.host_id, dir.previous_shards, dir.stamp.shards), (host, Some(5), 5));
    });
}

#[test]
fn a_second_holder_is_refused() {
    rt::block_on(async {
        let scratch = Scratch::new("datadir-lock");
        let dir = DataDir::open(&scratch, "one", 1).await.expect("fresh");
        let error = DataDir::open(&scratch, "one", 1).await.expect_err("held");
        let own = std::process::id();
        assert!(matches!(error, DataDirError::Locked { process: Some(id), .. } if id == own), "{error}");
        assert!(error.to_string().contains(&format!("(process {own})")), "{error}");
        // Operators remove what looks like a stale lock.
        for _ in 0..2 {
            std::fs::remove_file(scratch.join(LOCK)).expect("removed");
            let error = DataDir::open(&scratch, "one", 1).await.expect_err("still held");
            assert!(matches!(error, DataDirError::Locked { process: None, .. }), "{error}");
            assert!(error.to_string().contains("does not help"), "{error}");
            std::fs::write(scratch.join(LOCK), "").expect("written");
        }
        drop(dir);
        DataDir::open(&scratch, "one", 1).await.expect("free again");
    });
}

#[test]
fn foreign_newer_damaged_and_unstamped_directories_are_refused() {
    rt::block_on(async {
        let scratch = Scratch::new("datadir-refuse");
        let stamp = scratch.join(STAMP);
        let dir = DataDir::open(&scratch, "one", 1).await.expect("fresh");
        let good = dir.stamp.clone();
        drop(dir);

        fs::write_durably(&scratch.join("raft/log"), b"joined").await.expect("written");
        let error = DataDir::open(&scratch, "two", 1).await.expect_err("foreign");
        assert!(error.to_string().contains("cluster 'one'") && error.to_string().contains("'two'"), "{error}");

        sealed::write(&stamp, stamp::KIND, FORMAT + 1, &good).await.expect("written");
        let error = DataDir::open(&scratch, "one", 1).await.expect_err("newer");
        assert!(matches!(error, DataDirError::NewerFormat { found, .. } if found == FORMAT + 1), "{error}");

        fs::write_durably(&stamp, b"messina stamp 1 00000000\n{}\n").await.expect("written");
        let error = DataDir::open(&scratch, "one", 1).await.expect_err("damaged");
        assert!(matches!(error, DataDirError::CorruptStamp { .. }), "{error}");
        assert!(error.to_string().contains(REMEDY_FOR_LOST_STAMP), "{error}");

        fs::remove_file(&stamp).await.expect("removed");
        fs::create_dir_all(&scratch.join("data/ks")).await.expect("made");
        let error = DataDir::open(&scratch, "one", 1).await.expect_err("no stamp");
        assert!(matches!(error, DataDirError::NoStamp(_)), "{error}");
        assert!(error.to_string().contains(REMEDY_FOR_LOST_STAMP), "{error}");
    });
}

/// A typo in the name, at the first start: it must not stick.
#[test]
fn a_directory_that_never_joined_is_not_bound_to_a_name() {
    rt::block_on(async {
        let scratch = Scratch::new("datadir-typo");
        let dir = DataDir::open(&scratch, "Shoop", 1).await.expect("fresh");
        assert!(dir.is_new);
        let first = dir.host_id;
        drop(dir);
        let dir = DataDir::open(&scratch, "Shop", 2).await.expect("corrected");
        assert_eq!((dir.is_new, dir.previous_shards, dir.stamp.cluster_name.as_str()), (true, None, "Shop"));
        assert_ne!(dir.host_id, first, "no node of the other cluster may know it");
        let host = dir.host_id;
        drop(dir);
        let dir = DataDir::open(&scratch, "Shop", 2).await.expect("it waited");
        assert_eq!((dir.is_new, dir.host_id), (true, host));
        drop(dir);
        for part in PARTS {
            let file = scratch.join(part).join("file");
            fs::write_durably(&file, b"kept").await.expect("written");
            let error = DataDir::open(&scratch, "Shoop", 1).await.expect_err("it has joined");
            assert!(matches!(error, DataDirError::ForeignCluster { .. }), "{part}: {error}");
            assert!(!DataDir::open(&scratch, "Shop", 1).await.expect("its own").is_new, "{part}");
            fs::remove_file(&file).await.expect("removed");
        }
        let dir = DataDir::open(&scratch, "Shop", 1).await.expect("its own");
        dir.inventory_keeper(true).change(|_| {}).await.expect("written");
        drop(dir);
        let error = DataDir::open(&scratch, "Shoop", 1).await.expect_err("its files are lost");
        assert!(matches!(error, DataDirError::ForeignCluster { .. }), "{error}");
    });
}

#[test]
fn a_directory_inside_that_of_another_node_is_refused() {
    rt::block_on(async {
        let scratch = Scratch::new("datadir-inside");
        let outer = DataDir::open(&scratch, "Shop", 1).await.expect("new");
        drop(outer);
        let inner = scratch.join("data/second");
        let refused = DataDir::open(&inner, "Shop", 1).await.expect_err("inside");
        assert!(matches!(refused, DataDirError::Inside { .. }), "{refused}");
        assert!(!fs::is_there(&inner).await.expect("examined"), "nothing is made");
    });
}

#[cfg(not(feature = "sim"))]
#[test]
fn nested_data_directories_are_detected_through_links() {
    rt::block_on(async {
        let scratch = Scratch::new("datadir-place");
        let first = scratch.join("first");
        drop(DataDir::open(&first, "Shop", 1).await.expect("new"));
        drop(DataDir::open(&first.join("../second"), "Shop", 1).await.expect("beside the first"));
        let link = scratch.join("link");
        std::os::unix::fs::symlink(first.join("data"), &link).expect("linked");
        for inside in [link.join("third"), link.join("../third")] {
            let refused = DataDir::open(&inside, "Shop", 1).await.expect_err("inside");
            assert!(matches!(refused, DataDirError::Inside { .. }), "{refused}");
        }
        let refused = DataDir::open(&scratch, "Shop", 1).await.expect_err("around");
        assert!(matches!(refused, DataDirError::Around { .. }), "{refused}");
        // An operator may have nested directories before this was checked.
        let nested = first.join("nested");
        std::fs::rename(scratch.join("second"), &nested).expect("moved");
        drop(DataDir::open(&nested, "Shop", 1).await.expect("it is in use"));
        std::fs::write(scratch.join("messina.stamp"), b"").expect("written");
        drop(DataDir::open(&first, "Shop", 1).await.expect("an empty file is no stamp"));
    });
}

/// Where the inventory cannot be written at a start, for lack of disk space, a new table begins it.
#[test]
fn an_inventory_that_a_table_begins_knows_whether_the_node_is_alone() {
    rt::block_on(async {
        for alone in [true, false] {
            let scratch = Scratch::new(&format!("datadir-alone-{alone}"));
            let dir = DataDir::open(&scratch, "one", 1).await.expect("fresh");
            let table = TableId(uuid::Uuid::from_u128(7));
            let keeper = dir.inventory_keeper(alone);
            keeper.change(|inventory| inventory.tables.extend([table])).await.expect("written");
            drop(dir);
            let dir = DataDir::open(&scratch, "one", 1).await.expect("again");
            let inventory = dir.stamp.inventory.clone().expect("begun");
            assert_eq!((inventory.alone, inventory.tables.contains(&table)), (alone, true));
        }
    });
}

/// What could not be written goes with the next change, of whatever kind.
#[test]
fn changes_in_table_directories_are_not_lost_by_a_failure() {
    rt::block_on(async {
        let scratch = Scratch::new("datadir-pending");
        let dir = DataDir::open(&scratch, "Shop", 1).await.expect("new");
        let keeper = dir.inventory_keeper(true);
        let in_the_way = scratch.join("messina.stamp.tmp");
        fs::create_dir_all(&in_the_way).await.expect("made");
        let tables = [1, 2].map(|n| TableId(uuid::Uuid::from_u128(n)));
        keeper.add(vec![Made::Directory(tables[0])]).await.expect_err("the stamp cannot be written");
        keeper.add(vec![Made::Epoch(tables[1], 7)]).await.expect_err("the stamp cannot be written");
        fs::remove_dir_all(&in_the_way).await.expect("removed");
        keeper.change_runs(|_| {}).await.expect("written");
        drop((keeper, dir));
        let inventory = DataDir::open(&scratch, "Shop", 1).await.expect("again").stamp.inventory.expect("begun");
        assert!(inventory.tables.contains(&tables[0]));
        assert_eq!(inventory.epochs.get(&tables[1]), Some(&7));
    });
}

#[test]
fn names_of_table_directories_go_both_ways() {
    let id = TableId(uuid::Uuid::from_u128(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef));
    let name = table_dir_name("a-b", id);
    assert_eq!(name, "a-b-0123456789abcdef0123456789abcdef");
    assert_eq!(table_of_dir_name(&name), Some(("a-b", id)));
    for other in ["a", "a-b", "-0123456789abcdef0123456789abcdef", "a-0123456789ABCDEF0123456789abcdef", "lost+found"] {
        assert_eq!(table_of_dir_name(other), None, "{other}");
    }
}

/// A file, or a link to a disk that is not mounted, in the place of a directory: the error says
/// what to do.
#[test]
fn a_file_in_the_place_of_a_directory_is_named() {
    rt::block_on(async {
        for is_link in [false, true] {
            let scratch = Scratch::new("datadir-in-the-place");
            drop(DataDir::open(&scratch, "one", 1).await.expect("fresh"));
            let place = scratch.join("data");
            std::fs::remove_dir(&place).expect("removed");
            match is_link {
                true => std::os::unix::fs::symlink("/nowhere/at/all", &place).expect("linked"),
                false => std::fs::write(&place, b"").expect("written"),
            }
            let why = DataDir::open(&scratch, "one", 1).await.expect_err("it is no directory").to_string();
            let cause = match is_link {
                true => "is a link to /nowhere/at/all",
                false => "was replaced by something else",
            };
            assert!(why.contains(cause) && why.contains("move it away"), "{why}");
            assert!(why.contains(&place.display().to_string()), "{why}");
        }
    });
}

/// The power goes at every write of the first start: the directory can be opened afterwards, and a
/// host id that was given out stays.
#[cfg(feature = "sim")]
#[test]
fn a_fresh_directory_survives_a_power_loss_at_any_write() {
    use rt::sim::Disk;
    use std::cell::Cell;
    let path = Path::new("/var/messina");
    for seed in 0..20 {
        for cut in 1..25 {
            let disk = Disk::new(seed * 100 + cut);
            rt::sim::block_on(seed, &disk, async {
                fs::create_dir_all(Path::new("/var")).await.expect("made");
                fs::sync_dir(Path::new("/")).await.expect("synced");
            });
            let given = Cell::new(None);
            let start = |shards: u16| {
                let given = &given;
                async move {
                    let dir = DataDir::open(path, "one", shards).await.expect("opened");
                    let before = given.replace(Some(dir.host_id));
                    assert!(before.is_none_or(|before| before == dir.host_id), "the node has become another");
                }
            };
            disk.power_loss_at_write(cut);
            let _ = rt::sim::run(seed, &disk, start(1));
            disk.power_loss_at_write(cut % 7 + 1);
            let _ = rt::sim::run(seed + 1, &disk, start(2));
            disk.no_power_loss();
            disk.lose_power();
            rt::sim::block_on(seed + 2, &disk, start(3));
        }
    }
}
