//! The resources of the host: CPUs, memory, file descriptors, threads.

use std::io;
use std::path::Path;

/// The stack size of a thread that does nothing, in bytes.
const PROBE_STACK: usize = 64 << 10;

/// The CPUs that the process may use.
pub fn cpus() -> Vec<usize> {
    crate::machine::affinity()
}

/// The memory that the process may use, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryLimit {
    /// The memory of the machine.
    pub machine: u64,
    /// The limit of the process's control group, if it is lower.
    pub control_group: Option<u64>,
}

impl MemoryLimit {
    /// The lower one of both.
    pub fn bytes(&self) -> u64 {
        self.control_group.unwrap_or(self.machine)
    }
}

/// The memory that the process may use.
pub fn memory_limit() -> io::Result<MemoryLimit> {
    let info = std::fs::read_to_string("/proc/meminfo")?;
    let total = info
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/meminfo has no MemTotal"))?;
    let machine = total << 10;
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limit = control_group_limit(&groups, MEMORY, |file| std::fs::read_to_string(file).ok());
    Ok(MemoryLimit { machine, control_group: limit.filter(|limit| *limit < machine) })
}

/// The resident memory of the process, in bytes.
pub fn resident_memory() -> io::Result<u64> {
    let pages = std::fs::read_to_string("/proc/self/statm")?;
    let pages = pages.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    let pages =
        pages.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/self/statm has no second number"))?;
    Ok(pages * page_size())
}

/// The size of a page of memory, in bytes.
#[allow(unsafe_code)]
fn page_size() -> u64 {
    // SAFETY: reads a constant of the system.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(size).unwrap_or(4096)
}

/// A limit of control groups: its controller, its file in version 2, and its file in version 1.
type Limited = (&'static str, &'static str, &'static str);
const MEMORY: Limited = ("memory", "memory.max", "memory.limit_in_bytes");
const THREADS: Limited = ("pids", "pids.max", "pids.max");

/// The lowest limit of the process's control groups and their parents. `groups` is the content of
/// `/proc/self/cgroup`: a line has the number of a hierarchy, its controllers (none in version 2)
/// and the path of the group.
fn control_group_limit(
    groups: &str,
    (controller, file, file_v1): Limited,
    read: impl Fn(&Path) -> Option<String>,
) -> Option<u64> {
    let mut least = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(own)) = (parts.next(), parts.next()) else { continue };
        let (root, file) = match controllers.split(',').find(|one| one.is_empty() || *one == controller) {
            Some("") => ("/sys/fs/cgroup".to_owned(), file),
            Some(_) => (format!("/sys/fs/cgroup/{controller}"), file_v1),
            None => continue,
        };
        let mut path = Path::new(&root).join(own.trim_start_matches('/'));
        while path.starts_with(&root) {
            let limit = read(&path.join(file)).and_then(|text| text.trim().parse::<u64>().ok());
            least = [least, limit].into_iter().flatten().min();
            path.pop();
        }
    }
    least
}

/// The limits of the number of threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThreadLimits {
    /// The limit of the process's control group, for all its processes.
    pub control_group: Option<u64>,
    /// The limit of the user, for all processes of the user.
    pub user: Option<u64>,
}

/// The limits of the number of threads. A limit that cannot be read counts as none.
#[allow(unsafe_code)]
pub fn thread_limits() -> ThreadLimits {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let control_group = control_group_limit(&groups, THREADS, |file| std::fs::read_to_string(file).ok());
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes the one structure that we give.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NPROC, &mut limit) } == 0;
    let user = (known && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur);
    ThreadLimits { control_group, user }
}

/// Starts up to `wanted` idle threads, ends them again, and returns how many could be started.
pub fn startable_threads(wanted: usize) -> usize {
    let (hold, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Arc::new(std::sync::Mutex::new(held));
    let idle = || {
        let held = held.clone();
        let wait = move || drop(held.lock().map(|held| held.recv()));
        std::thread::Builder::new().name("probe".to_owned()).stack_size(PROBE_STACK).spawn(wait).ok()
    };
    let started: Vec<_> = std::iter::from_fn(idle).take(wanted).collect();
    drop(hold);
    let count = started.len();
    for thread in started {
        let _ = thread.join();
    }
    count
}

/// The maximum number of open files of the process.
#[allow(unsafe_code)]
pub fn open_files() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes the one structure that we give.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(limit.rlim_cur)
}

/// Raises the maximum number of open files to the hard limit. Returns the new limit.
#[allow(unsafe_code)]
pub fn raise_open_files() -> io::Result<u64> {
    // SAFETY: both calls read or write the one structure that we give.
    unsafe {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) != 0 {
            return Err(io::Error::last_os_error());
        }
        limit.rlim_cur = limit.rlim_max;
        if libc::setrlimit(libc::RLIMIT_NOFILE, &limit) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(limit.rlim_cur)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_limit_of_a_control_group_is_that_of_it_or_a_parent() {
        let limit = |groups: &str, files: &[(&str, &str)]| {
            let found = |path: &std::path::Path| files.iter().find(|(file, _)| path == std::path::Path::new(file));
            super::control_group_limit(groups, super::MEMORY, |path| found(path).map(|(_, text)| (*text).to_owned()))
        };
        let second = [("/sys/fs/cgroup/a/memory.max", "700\n"), ("/sys/fs/cgroup/a/b/memory.max", "max\n")];
        assert_eq!(limit("0::/a/b\n", &second), Some(700));
        assert_eq!(limit("0::/\n", &second), None);
        let first = [
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "230686720\n"),
        ];
        let groups = |path: &str| format!("5:cpu,cpuacct:/x\n4:memory:{path}\n1:name=systemd:/y\n");
        assert_eq!(limit(&groups("/a"), &first), Some(230_686_720));
        assert_eq!(limit(&groups("/a/b"), &first), Some(230_686_720));
        // In a container the path is the host's path, and the root is the container's own group.
        assert_eq!(limit(&groups("/docker/1"), &first[..1]), Some(9_223_372_036_854_771_712));
        assert_eq!(limit("", &first), None);
        let read = |path: &std::path::Path| (path.ends_with("pids/a/pids.max")).then(|| "7\n".to_owned());
        assert_eq!(super::control_group_limit("3:pids:/a\n", super::THREADS, read), Some(7));
    }

    #[test]
    fn threads_can_be_started() {
        assert_eq!(super::startable_threads(9), 9);
        assert_eq!(super::startable_threads(0), 0);
    }

    #[test]
    fn there_is_something_to_run_on() {
        assert!(!super::cpus().is_empty());
        assert!(super::memory_limit().expect("known").bytes() > 1 << 20);
        let raised = super::raise_open_files().expect("raised");
        assert!(raised > 0 && super::open_files().is_ok_and(|limit| limit == raised));
    }
}
