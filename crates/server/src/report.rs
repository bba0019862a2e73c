//! What this node says of itself to the others with every answer to a ping: whether it serves clients, which schema it has, how much is on
//! its disk. A node that is alone says nothing. On shard 0.

use cluster::MetadataService;
use engine::Engine;
use internode::{Internode, SelfReport};
use rt::time::Duration;
use std::cell::Cell;
use std::rc::Rc;

/// How often it is looked how much is on the disk.
const LOOK: Duration = Duration::from_secs(5);

/// What is told and is not to be had at once.
#[derive(Debug, Default)]
struct Report {
    serving: Cell<bool>,
    load_bytes: Cell<u64>,
}

/// Begins to tell others of this node. It does not serve clients yet.
pub fn begin(internode: &Internode) {
    let report = Rc::new(Report::default());
    rt::shard::install(report.clone());
    rt::task::spawn(keep_load(report.clone())).detach();
    internode.report_with(move || SelfReport {
        serving: report.serving.get(),
        schema: rt::shard::try_service::<MetadataService>().map_or_else(Default::default, |all| all.current().version),
        load_bytes: report.load_bytes.get(),
        stopping: false,
    });
}

/// From now on this node serves clients, or does so no longer.
pub fn set_serving(serving: bool) {
    if let Some(report) = rt::shard::try_service::<Report>() {
        report.serving.set(serving);
    }
}

/// Nothing more is to be told.
pub fn end() {
    rt::shard::uninstall::<Report>();
}

async fn keep_load(report: Rc<Report>) {
    loop {
        let bytes = rt::shard::call_all(|| async {
            rt::shard::try_service::<Engine>().map_or(0, |engine| engine.metrics().disk_bytes)
        });
        report.load_bytes.set(bytes.await.iter().sum());
        if rt::time::timeout(LOOK, rt::shard::stopping().cancelled()).await.is_ok() {
            return;
        }
    }
}
