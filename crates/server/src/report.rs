//! What this node says of itself to the others with every answer to a ping: whether it serves clients, which schema it has, how much is on
//! its disk. A node that is alone says nothing. On shard 0.

use cluster::MetadataService;
use engine::Engine;
use internode::{Internode, SelfReport};
use rt::shard::PerShard;
use rt::time::Duration;
use std::cell::Cell;
use std::rc::Rc;

/// How often it is looked how much is on the disk.
const LOOK: Duration = Duration::from_secs(5);

/// What is told and is not to be had at once.
#[derive(Debug, Default)]
pub struct Report {
    serving: Cell<bool>,
    load_bytes: Cell<u64>,
}

/// Begins to tell others of this node. It does not serve clients yet.
pub fn begin(
    reports: PerShard<Report>,
    internode: &Internode,
    metadata: PerShard<MetadataService>,
    engines: PerShard<Engine>,
) {
    let report = Rc::new(Report::default());
    reports.set(report.clone());
    rt::task::spawn(keep_load(report.clone(), engines)).detach();
    internode.report_with(move || SelfReport {
        serving: report.serving.get(),
        schema: metadata.try_get().map_or_else(Default::default, |all| all.current().version),
        load_bytes: report.load_bytes.get(),
        stopping: false,
    });
}

impl Report {
    /// From now on this node serves clients, or does so no longer.
    pub fn set_serving(&self, serving: bool) {
        self.serving.set(serving);
    }
}

async fn keep_load(report: Rc<Report>, engines: PerShard<Engine>) {
    loop {
        let bytes =
            rt::shard::call_all(
                move || async move { engines.try_get().map_or(0, |engine| engine.metrics().disk_bytes) },
            );
        report.load_bytes.set(bytes.await.iter().sum());
        if rt::time::timeout(LOOK, rt::shard::stopping().cancelled()).await.is_ok() {
            return;
        }
    }
}
