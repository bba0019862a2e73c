//! What an operator can do about an error of the file system. The text is the end of a message that
//! has the path and the error.
//!
//! The operating system's message names no cause. "No such file or directory" may mean a link to a
//! disk that is not mounted, and "Permission denied" may mean any directory of the path. So these
//! functions examine the path again. That blocks the thread, which is acceptable because the node
//! exits after such an error.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What to do about `error`, which came when the node used `path`. Begins with ". ", and is empty
/// if nothing is known.
pub fn remedy(path: &Path, error: &io::Error) -> String {
    match error.kind() {
        // `AlreadyExists`: a file or a link to nothing where a directory is to be made.
        io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists if let Some(link) = broken_link(path) => link,
        io::ErrorKind::IsADirectory | io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => in_its_place(),
        // A FIFO or device.
        io::ErrorKind::InvalidInput if error.raw_os_error().is_none() => in_its_place(),
        // Not EACCES: the modes allow it.
        io::ErrorKind::PermissionDenied if error.raw_os_error() == Some(libc::EPERM) => attributes(path),
        io::ErrorKind::PermissionDenied => permission(path),
        io::ErrorKind::ReadOnlyFilesystem => {
            ". The file system is read-only. After an error of the device, the kernel makes it so: look at its log (dmesg), check the \
             device, mount the file system with write access again, then start the node"
                .into()
        }
        _ if error.raw_os_error() == Some(libc::ELOOP) => broken_link(path).unwrap_or_else(|| {
            format!(". A link in the path, or behind it, leads back to itself: {PUT_BACK}")
        }),
        _ => String::new(),
    }
}

/// Like [`remedy`], for an error when the directory at `path` is made. If the directory has never
/// existed, nothing was moved or changed, and the operator has to make it.
pub fn remedy_for_new_dir(path: &Path, error: &io::Error) -> String {
    if is_simulated() || broken_link(path).is_some() {
        return remedy(path, error);
    }
    let other = parts(path).find(|part| std::fs::metadata(part).is_ok_and(|found| !found.is_dir()));
    match (other, error.kind()) {
        (Some(other), _) => format!(". {} is not a directory: name a directory", other.display()),
        (None, io::ErrorKind::PermissionDenied) if is_missing(path) => {
            let uid = effective_user();
            let path = path.display();
            format!(
                ". The directory does not exist, and the process runs as user {uid}, which may not create it: create it and give it \
                 to this user (as root: mkdir -p {path} && chown {uid} {path}), or name another directory"
            )
        }
        _ => remedy(path, error),
    }
}

/// Whether nothing is there. If a directory of the path is there but may not be searched, that is
/// not known.
fn is_missing(path: &Path) -> bool {
    path.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

const PUT_BACK: &str = "move it away, and restore the original as it was when the node stopped. If the original is lost, the next \
    start reports its content";

fn in_its_place() -> String {
    format!(". A file or directory of the node was replaced by something else: {PUT_BACK}")
}

/// What to do about the first link in a path that leads nowhere; `None` if there is no such link.
fn broken_link(path: &Path) -> Option<String> {
    if is_simulated() {
        return None;
    }
    for part in parts(path) {
        let Err(error) = std::fs::metadata(part) else { continue };
        let target = std::fs::read_link(part).ok()?;
        let (part, target) = (part.display(), target.display());
        return Some(match error.raw_os_error() {
            Some(libc::ELOOP) => format!(". {part} is a link that leads back to itself: {PUT_BACK}"),
            _ => format!(
                ". {part} is a link to {target}, which does not exist. If its disk is not mounted, mount the disk. If the link is wrong, \
                 {PUT_BACK}"
            ),
        });
    }
    None
}

/// Describes which user this process runs as, and the first directory of the path that it may not
/// use.
fn permission(path: &Path) -> String {
    if is_simulated() {
        return String::new();
    }
    let may = |part: &Path| {
        let is_dir = std::fs::metadata(part).is_ok_and(|found| found.is_dir());
        // In a directory of the path names are looked up; in the last one they are also listed and
        // made.
        let mode = match (is_dir, part == path) {
            (true, false) => libc::X_OK,
            (true, true) => libc::R_OK | libc::W_OK | libc::X_OK,
            (false, _) => libc::R_OK | libc::W_OK,
        };
        may_access(part, mode)
    };
    let refused = parts(path).find(|part| part.symlink_metadata().is_ok() && !may(part));
    // All can be used, so a name in the last directory could not be made or removed.
    let part = refused.or(path.parent()).unwrap_or(path);
    let uid = effective_user();
    match std::fs::metadata(part) {
        Ok(found) => {
            let remedy = match found.uid() == uid {
                true => "restore the mode (chmod)",
                false => "start the node as that user, or restore the owner and the mode (chown, chmod)",
            };
            format!(
                ". The process runs as user {uid}, and {} belongs to user {} and group {} with mode {:04o}: {remedy}, then start \
                 the node again",
                part.display(),
                found.uid(),
                found.gid(),
                found.mode() & 0o7777
            )
        }
        Err(_) => format!(
            ". The process runs as user {uid}: restore its access to {}, then start the node again",
            part.display()
        ),
    }
}

/// Which attributes can forbid a change that the modes allow.
fn attributes(path: &Path) -> String {
    let path = path.display();
    format!(
        ". The kernel forbids it, whatever the mode. Perhaps {path} or its directory has an attribute (lsattr -d shows i or a): \
         remove it (chattr -i -a)"
    )
}

/// A path's directories from the root on, and the path itself.
fn parts(path: &Path) -> impl Iterator<Item = &Path> {
    let mut parts: Vec<&Path> = path.ancestors().filter(|part| !part.as_os_str().is_empty()).collect();
    parts.reverse();
    parts.into_iter()
}

#[allow(unsafe_code)]
fn may_access(path: &Path, mode: i32) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return true };
    // SAFETY: a C string, and flags.
    unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), mode, libc::AT_EACCESS) == 0 }
}

#[allow(unsafe_code)]
fn effective_user() -> u32 {
    // SAFETY: it has no arguments and cannot fail.
    unsafe { libc::geteuid() }
}

/// Whether paths belong to a simulated disk, which has neither links nor owners.
fn is_simulated() -> bool {
    #[cfg(feature = "sim")]
    return crate::ctx::try_with(|ctx| matches!(ctx.io, super::Io::Disk { .. })).unwrap_or(false);
    #[cfg(not(feature = "sim"))]
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_new_directory_is_made_by_the_operator_if_the_node_may_not() {
        let scratch = test_support::Scratch::new("way-out-new");
        let (new, file) = (scratch.join("new"), scratch.join("file"));
        std::fs::write(&file, "").expect("written");
        let refused = io::Error::from_raw_os_error(libc::EACCES);
        let why = remedy_for_new_dir(&new, &refused);
        assert!(why.contains("does not exist") && why.contains(&format!("mkdir -p {}", new.display())), "{why}");
        assert!(!why.contains("restore"), "nothing was changed: {why}");
        let why = remedy_for_new_dir(&scratch, &refused);
        assert!(why.contains("then start the node again"), "it is there: {why}");
        for path in [file.clone(), file.join("deeper")] {
            let error = std::fs::create_dir_all(&path).expect_err("a file is there");
            let why = remedy_for_new_dir(&path, &error);
            assert_eq!(why, format!(". {} is not a directory: name a directory", file.display()));
        }
        symlink(scratch.join("unmounted"), scratch.join("gone")).expect("linked");
        let error = std::fs::create_dir_all(scratch.join("gone")).expect_err("a link is there");
        assert!(remedy_for_new_dir(&scratch.join("gone"), &error).contains("mount the disk"), "{error}");
    }

    #[test]
    fn a_broken_link_is_named_with_its_target() {
        let scratch = test_support::Scratch::new("way-out");
        let dir = &scratch;
        symlink(dir.join("unmounted"), dir.join("gone")).expect("linked");
        symlink("loop", dir.join("loop")).expect("linked");
        for (path, what) in
            [("gone", "unmounted"), ("gone/run/manifest", "unmounted"), ("loop", "leads back to itself")]
        {
            let path = dir.join(path);
            let error = std::fs::read(&path).expect_err("it leads nowhere");
            let why = remedy(&path, &error);
            assert!(why.contains(what) && why.contains("move it away"), "{why}");
        }
        let error = std::fs::create_dir_all(dir.join("gone")).expect_err("a link is there");
        assert!(remedy(&dir.join("gone"), &error).contains("mount the disk"), "{error}");
        let error = std::fs::read(dir.join("nothing")).expect_err("it is not there");
        assert_eq!(remedy(&dir.join("nothing"), &error), "");
        let error = std::fs::read(dir).expect_err("a directory");
        assert!(remedy(dir, &error).contains("move it away"));
        let read_only = io::Error::from_raw_os_error(libc::EROFS);
        assert!(remedy(dir, &read_only).contains("read-only"));
        let forbidden = io::Error::from_raw_os_error(libc::EPERM);
        assert!(remedy(dir, &forbidden).contains("chattr"));
        let refused = io::Error::from_raw_os_error(libc::EACCES);
        let why = remedy(&dir.join("nothing"), &refused);
        let owner = std::fs::metadata(dir).expect("there").uid();
        assert!(why.contains(&format!("{} belongs to user {owner}", dir.display())), "{why}");
        assert!(why.contains(&format!("runs as user {}", effective_user())), "{why}");
    }
}
