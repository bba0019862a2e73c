//! The node that a `hints_directory` belongs to. Nodes that share a directory would mix up their
//! files.

use super::sealed;
use model::id::HostId;
use std::io;
use std::path::Path;

/// The name of the file with the owner.
const NAME: &str = "owner";
const FORMAT: u8 = 1;

/// Records, durably, that a directory belongs to this node.
///
/// # Errors
///
/// If it belongs to another node.
pub async fn claim_directory(directory: &Path, own: HostId) -> io::Result<()> {
    let path = directory.join(NAME);
    if !rt::fs::is_there(&path).await? {
        // Of several nodes that start at the same time, one succeeds.
        let new = directory.join(format!("{NAME}-{own}"));
        rt::fs::write_durably(&new, &sealed::encode(FORMAT, &own)).await?;
        let linked = rt::fs::hard_link(&new, &path).await;
        rt::fs::remove_file(&new).await?;
        match linked {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => other?,
        }
        rt::fs::sync_dir(directory).await?;
    }
    let bytes = rt::fs::read(&path).await?;
    let why = match sealed::decode::<HostId>(FORMAT, &bytes) {
        Some(owner) if owner == own => return Ok(()),
        Some(owner) => format!("the directory belongs to node {owner}, and this is node {own}"),
        None => "the file with the owner of the directory cannot be read".to_owned(),
    };
    Err(io::Error::other(format!(
        "{why}. Give each node a directory of its own. If the directory belonged to a node that no longer exists, remove {}",
        path.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn a_directory_belongs_to_the_first_node() {
        rt::block_on(async {
            let directory = test_support::Scratch::new("hints-owner");
            let node = |n: u128| HostId(Uuid::from_u128(n));
            for _ in 0..2 {
                claim_directory(&directory, node(1)).await.expect("its own");
            }
            let refused = claim_directory(&directory, node(2)).await.expect_err("another one's").to_string();
            let path = directory.join(NAME);
            assert!(
                refused.contains(&node(1).to_string()) && refused.contains(&path.display().to_string()),
                "{refused}"
            );
            std::fs::write(&path, b"x").expect("written");
            assert!(claim_directory(&directory, node(1)).await.is_err(), "the owner is unknown");
            std::fs::remove_file(&path).expect("removed");
            claim_directory(&directory, node(2)).await.expect("it is free");
            assert_eq!(std::fs::read_dir(&directory).expect("a directory").count(), 1);
        });
    }
}
