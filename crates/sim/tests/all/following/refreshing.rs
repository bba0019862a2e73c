//! A refresh while a tablet of its table moves. It loads all rows, or none and the uploads stay.

use super::*;
use cluster::refresh::{self, Refreshed};
use cluster::tablets::transition::Stage;
use model::HostId;
use rt::sim::Latency;
use rt::sync::Deadline;
use std::path::{Path, PathBuf};

/// So slow that there is time to change the metadata while a refresh copies files.
const SLOW: Latency = Latency { min: Duration::from_millis(5), max: Duration::from_millis(10), slow_permille: 1000 };
/// The number of rows in `upload`.
const ROWS: usize = 12;

fn table_dir() -> PathBuf {
    Path::new(DATA).join("q").join(engine::datadir::table_dir_name("t", id(11)))
}

/// The files in the table's directory with names that `is_wanted`, sorted.
fn files_in(disk: &Disk, dir: &Path, is_wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let own = disk.files().into_iter().map(|(path, _)| path).filter(|path| path.parent() == Some(dir));
    let mut own: Vec<PathBuf> =
        own.filter(|path| is_wanted(&path.file_name().unwrap_or_default().to_string_lossy())).collect();
    own.sort();
    own
}

fn uploads(disk: &Disk) -> Vec<PathBuf> {
    files_in(disk, &table_dir().join("upload"), |_| true)
}

/// Makes a table without rows, and puts sstables with [`ROWS`] rows into its `upload` directory.
async fn prepare(disk: &Disk) -> Result<Vec<PathBuf>, String> {
    make("create keyspace", 1).await?;
    make("create table", 1).await?;
    fill().await?;
    flush().await;
    let (dir, upload) = (table_dir(), table_dir().join("upload"));
    rt::fs::create_dir_all(&upload).await.map_err(|error| error.to_string())?;
    for path in files_in(disk, &dir, |name| name.contains("-big-")) {
        let to = upload.join(path.file_name().expect("a file has a name"));
        rt::fs::hard_link(&path, &to).await.map_err(|error| error.to_string())?;
    }
    execute("TRUNCATE q.t").await?;
    assert_eq!(rows().await?, 0, "the table is empty");
    let found = uploads(disk);
    assert!(found.len() > 20, "{found:?}");
    Ok(found)
}

async fn rows() -> Result<usize, String> {
    sim::reads::count("SELECT k FROM q.t").await
}

/// Begins a refresh. The flag is true once it has ended.
fn begin() -> (rt::task::Task<Result<Refreshed, String>>, Rc<Cell<bool>>) {
    let done = Rc::new(Cell::new(false));
    let flag = done.clone();
    let task = rt::task::spawn(async move {
        let result = refresh::refresh(LAYERS.cluster(), id(11)).await;
        flag.set(true);
        result
    });
    (task, done)
}

/// Waits until a file of this name is in the table's directory.
async fn appears(disk: &Disk, is_wanted: impl Fn(&str) -> bool) {
    while files_in(disk, &table_dir(), &is_wanted).is_empty() {
        rt::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn apply(op: Op) -> Result<(), String> {
    let made: Result<(), ChangeError<String>> = change(LAYERS.metadata, move |_, _| Ok((vec![op.clone()], ()))).await;
    made.map_err(|error| error.to_string())
}

fn own_host() -> HostId {
    LAYERS.metadata.get().info().host_id
}

/// A node that does not exist: nothing is sent to it.
fn other_host() -> HostId {
    HostId(Uuid::from_u128(77))
}

fn end(moved: bool) -> Op {
    Op::EndTransition { table: id(11), tablet: 0, moved }
}

/// Whether this node has followed to its newest metadata and uses none older, within this time.
async fn is_followed(within: Duration) -> bool {
    let until = Deadline::after(within);
    let number = LAYERS.metadata.get().number();
    let followed =
        rt::shard::call_all(move || async move { LAYERS.metadata.get().wait_until_unused(number, until).await });
    followed.await.into_iter().all(|followed| followed)
}

/// Checks that nothing was loaded and that the uploads are complete.
async fn check_untouched(disk: &Disk, before: &[PathBuf]) {
    assert_eq!(uploads(disk), before, "the uploads stay");
    let left = files_in(disk, &table_dir(), |name| name.contains("-big-") || name.starts_with("replacement-"));
    assert_eq!(left, Vec::<PathBuf>::new(), "no copy is left");
}

fn on_a_node<F>(seed: u64, main: impl Fn(Disk, Vec<PathBuf>) -> F + Clone + 'static)
where
    F: Future<Output = Result<(), String>> + 'static,
{
    let (mut world, disk, shared) = new_node(seed, false);
    let own = disk.clone();
    let run = move |_| {
        let (disk, main) = (own.clone(), main.clone());
        async move {
            let before = prepare(&disk).await?;
            disk.set_latency(SLOW);
            main(disk, before).await
        }
    };
    run_node(&mut world, &disk, false, run, &shared);
}

/// The tablet has moved to another shard before its sstables are attached.
#[test]
fn a_refresh_follows_a_tablet_to_another_shard() {
    on_a_node(30, |disk, _| async move {
        let (refreshing, done) = begin();
        appears(&disk, |name| name.ends_with("TOC.txt.tmp")).await;
        apply(changes::moving(1, own_host(), Stage::Streaming, 1)).await?;
        apply(end(true)).await?;
        assert!(!done.get(), "the files are still copied");
        refreshing.await.map_err(|_| "stopping")??;
        assert_eq!(rows().await?, ROWS);
        assert_eq!(uploads(&disk), Vec::<PathBuf>::new());
        Ok(())
    });
}

/// The tablet has moved to another node before its sstables are attached: nothing is loaded.
#[test]
fn a_refresh_loads_nothing_if_a_tablet_has_left() {
    on_a_node(31, |disk, before| async move {
        let (refreshing, done) = begin();
        appears(&disk, |name| name.ends_with("TOC.txt.tmp")).await;
        apply(changes::moving(1, other_host(), Stage::Streaming, 0)).await?;
        apply(end(true)).await?;
        assert!(!done.get(), "the files are still copied");
        let why = refreshing.await.map_err(|_| "stopping")?.expect_err("a tablet is gone");
        assert!(why.contains("tablet 0 moved to another node") && why.contains("Nothing was loaded"), "{why}");
        check_untouched(&disk, &before).await;
        Ok(())
    });
}

/// The tablet begins to move while files are copied: nothing is loaded, and the move does not wait
/// for the copies. While it moves no refresh begins. Afterwards everything can be loaded.
#[test]
fn a_refresh_is_refused_while_a_tablet_moves() {
    on_a_node(32, |disk, before| async move {
        let (refreshing, done) = begin();
        appears(&disk, |name| name.ends_with("TOC.txt.tmp")).await;
        apply(changes::moving(1, other_host(), Stage::AllowWriteBothReadOld, 0)).await?;
        assert!(is_followed(Duration::from_secs(60)).await, "a barrier");
        assert!(!done.get(), "the barrier does not wait for the copies");
        let why = refreshing.await.map_err(|_| "stopping")?.expect_err("a tablet moves");
        assert!(
            why.contains("tablet 0 of this node is in a transition") && why.contains("Nothing was loaded"),
            "{why}"
        );
        check_untouched(&disk, &before).await;

        let again = refresh::refresh(LAYERS.cluster(), id(11)).await.expect_err("a tablet moves");
        assert!(again.contains("stage allow_write_both_read_old"), "{again}");
        check_untouched(&disk, &before).await;
        apply(end(false)).await?;
        refresh::refresh(LAYERS.cluster(), id(11)).await?;
        assert_eq!(rows().await?, ROWS);
        Ok(())
    });
}

/// From the record of the load until the pieces are attached, a move does not get past its first
/// stage: its barrier waits. So its streaming includes the loaded rows.
#[test]
fn a_move_waits_until_recorded_sstables_are_attached() {
    on_a_node(33, |disk, _| async move {
        let (refreshing, done) = begin();
        appears(&disk, |name| name.starts_with("replacement-") && name.ends_with(".log")).await;
        disk.refuse_below(table_dir(), Refusal::NoDescriptors, 0, ENDLESS);
        apply(changes::moving(1, other_host(), Stage::AllowWriteBothReadOld, 0)).await?;
        assert!(!is_followed(Duration::from_secs(30)).await, "the barrier waits");
        assert!(!done.get(), "the refresh waits for descriptors");
        disk.refuse_nothing();
        assert!(is_followed(Duration::from_secs(60)).await, "the barrier ends");
        assert!(refreshing.await.map_err(|_| "stopping")?.is_ok());
        assert_eq!(rows().await?, ROWS);
        Ok(())
    });
}
