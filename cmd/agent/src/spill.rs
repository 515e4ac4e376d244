//! The folder that keeps the full text of outputs too long for a reply: bounded, and safe from what a command puts there.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::stat::{Mode, SFlag, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};

/// Files kept at most.
const MAX_FILES: usize = 64;
/// Bytes kept of one output.
pub const MAX_FILE_BYTES: u64 = 16 << 20;
/// Bytes kept of all outputs together.
const MAX_TOTAL_BYTES: u64 = 64 << 20;
/// Where the files are, below the workspace.
const FOLDERS: [&str; 2] = [".cli-mcp", "output"];
/// What every file of ours is called: `<sequence>-<stream>.txt`, so that names sort by age.
const SUFFIX: &str = ".txt";

/// Where full outputs of one call go.
#[derive(Clone, Debug)]
pub struct SpillFolder {
    workspace: PathBuf,
    /// The names of this call's own files: they may still grow, and none makes room for another.
    own: Arc<Mutex<Vec<String>>>,
}

/// One output on its way to disk.
#[derive(Debug)]
pub struct Spill {
    to: Result<Destination, Errno>,
    kept: u64,
    cut: bool,
}

#[derive(Debug)]
struct Destination {
    file: File,
    folder: OwnedFd,
    name: String,
    path: PathBuf,
    own: Arc<Mutex<Vec<String>>>,
}

/// A regular file of the folder that is called like ours: in their order, the oldest comes first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kept {
    sequence: u64,
    name: String,
    bytes: u64,
}

impl SpillFolder {
    /// A folder below `workspace`; nothing is made until an output needs it.
    #[must_use]
    pub fn new(workspace: &Path) -> Self {
        Self {
            workspace: workspace.to_owned(),
            own: Arc::default(),
        }
    }

    /// Opens the file for one output, after the oldest made room for it. A failure is kept and told in the reply.
    #[must_use]
    pub fn create(&self, stream: &str) -> Spill {
        Spill {
            to: self.try_create(stream),
            kept: 0,
            cut: false,
        }
    }

    fn try_create(&self, stream: &str) -> Result<Destination, Errno> {
        let folder = self.open_folder()?;
        let (next, files) = list(&folder)?;
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        for file in surplus(&files, &own) {
            delete(&folder, &file.name)?;
        }
        let name = format!("{next:08}-{stream}{SUFFIX}");
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = loop {
            match openat(&folder, name.as_str(), flags, Mode::S_IRUSR | Mode::S_IWUSR) {
                Err(errno) if is_full(errno) && delete_oldest(&folder, &own) => {}
                opened => break opened?,
            }
        };
        own.push(name.clone());
        let mut path = self.workspace.clone();
        path.extend(FOLDERS);
        path.push(&name);
        Ok(Destination {
            file: File::from(file),
            folder,
            name,
            path,
            own: Arc::clone(&self.own),
        })
    }

    /// Walks to the folder by descriptors that follow no link: a link that a command put there leads nowhere (case 105).
    fn open_folder(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut folder = open(&self.workspace, flags, Mode::empty())?;
        for name in FOLDERS {
            match mkdirat(&folder, name, Mode::S_IRWXU) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(errno) => return Err(errno),
            }
            folder = openat(&folder, name, flags | OFlag::O_NOFOLLOW, Mode::empty())?;
        }
        Ok(folder)
    }
}

/// The next sequence number, which nothing in the folder has, and the files that can make room.
fn list(folder: &OwnedFd) -> Result<(u64, Vec<Kept>), Errno> {
    let mut listing = Dir::openat(
        folder,
        ".",
        OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
        Mode::empty(),
    )?;
    let mut next = 1;
    let mut files = Vec::new();
    for entry in listing.iter().filter_map(Result::ok) {
        let Some((sequence, name)) = numbered(entry.file_name()) else {
            continue;
        };
        next = next.max(sequence.saturating_add(1));
        if let Ok(stat) = fstatat(folder, name.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW)
            && SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFREG
        {
            let bytes = u64::try_from(stat.st_size).unwrap_or(0);
            files.push(Kept { sequence, name, bytes });
        }
    }
    files.sort_unstable();
    Ok((next, files))
}

/// The sequence number in a name like ours, and the name.
fn numbered(name: &CStr) -> Option<(u64, String)> {
    let name = name.to_str().ok()?;
    let sequence = name.strip_suffix(SUFFIX)?.split_once('-')?.0.parse().ok()?;
    Some((sequence, name.to_owned()))
}

/// The oldest files, as many as must go so that one more fits when it and the call's own have grown to their bound.
fn surplus<'a>(files: &'a [Kept], own: &[String]) -> Vec<&'a Kept> {
    let (growing, grown): (Vec<&Kept>, Vec<&Kept>) = files.iter().partition(|file| own.contains(&file.name));
    let growing = growing.len() + 1;
    let mut count = grown.len() + growing;
    let mut total = grown.iter().map(|file| file.bytes).sum::<u64>() + growing as u64 * MAX_FILE_BYTES;
    grown
        .into_iter()
        .take_while(|file| {
            let is_surplus = count > MAX_FILES || total > MAX_TOTAL_BYTES;
            count -= 1;
            total -= file.bytes;
            is_surplus
        })
        .collect()
}

/// Deletes a file. One that a command has deleted meanwhile is as good.
fn delete(folder: &OwnedFd, name: &str) -> Result<(), Errno> {
    match unlinkat(folder, name, UnlinkatFlags::NoRemoveDir) {
        Err(Errno::ENOENT) => Ok(()),
        deleted => deleted,
    }
}

/// Deletes the oldest file that is not the call's own, if there is one that can be.
fn delete_oldest(folder: &OwnedFd, own: &[String]) -> bool {
    let files = list(folder).map(|(_, files)| files).unwrap_or_default();
    let oldest = files.iter().find(|file| !own.contains(&file.name));
    oldest.is_some_and(|file| delete(folder, &file.name).is_ok())
}

/// Whether a failure is one that goes away where there is room.
fn is_full(errno: Errno) -> bool {
    matches!(errno, Errno::ENOSPC | Errno::EDQUOT)
}

impl Destination {
    /// Appends. Where the disk is full, the oldest files make room.
    fn append(&mut self, mut bytes: &[u8]) -> Result<(), Errno> {
        while !bytes.is_empty() {
            match self.file.write(bytes) {
                Ok(0) => return Err(Errno::EIO),
                Ok(count) => bytes = &bytes[count..],
                Err(error) => {
                    let errno = errno_of(&error);
                    let own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
                    let again = errno == Errno::EINTR || is_full(errno) && delete_oldest(&self.folder, &own);
                    if !again {
                        return Err(errno);
                    }
                }
            }
        }
        Ok(())
    }

    /// Leaves nothing on the disk, whatever the file may be called by now.
    fn discard(&self) {
        let _ = self.file.set_len(0);
        let _ = delete(&self.folder, &self.name);
    }
}

impl Spill {
    /// Appends, up to the bound of one file; the first failure ends it, and leaves no part of it.
    pub fn write(&mut self, bytes: &[u8]) {
        let Ok(destination) = &mut self.to else { return };
        let room = usize::try_from(MAX_FILE_BYTES - self.kept).unwrap_or(usize::MAX);
        let part = &bytes[..bytes.len().min(room)];
        self.cut |= part.len() < bytes.len();
        match destination.append(part) {
            Ok(()) => self.kept += part.len() as u64,
            Err(errno) => {
                destination.discard();
                self.to = Err(errno);
            }
        }
    }

    /// The words of the reply's line that say where the full text is.
    #[must_use]
    pub fn describe(&self) -> String {
        match &self.to {
            Ok(to) if self.cut => format!("the first {} bytes are in {}", self.kept, to.path.display()),
            Ok(to) => format!("the full text is in {}", to.path.display()),
            Err(errno) => format!("the full text could not be kept: {}", errno.desc()),
        }
    }
}

fn errno_of(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(workspace: &Path) -> Vec<u64> {
        std::fs::read_dir(workspace.join(".cli-mcp/output"))
            .unwrap()
            .map(|entry| entry.unwrap().metadata().unwrap().len())
            .collect()
    }

    #[test]
    fn files_and_bytes_are_bounded_and_the_oldest_goes_first() {
        let workspace = tempfile::tempdir().unwrap();
        for _ in 0..200 {
            SpillFolder::new(workspace.path())
                .create("stdout")
                .write(&vec![b'x'; 1 << 20]);
        }
        let sizes = files(workspace.path());
        assert!(
            sizes.len() <= MAX_FILES && sizes.iter().sum::<u64>() <= MAX_TOTAL_BYTES,
            "{sizes:?}"
        );
        assert!(workspace.path().join(".cli-mcp/output/00000200-stdout.txt").exists());
        assert!(!workspace.path().join(".cli-mcp/output/00000001-stdout.txt").exists());
    }

    #[test]
    fn two_files_that_grow_together_stay_within_the_bound() {
        let workspace = tempfile::tempdir().unwrap();
        let almost_full = MAX_FILE_BYTES - (1 << 20);
        for _ in 0..3 {
            let spill = SpillFolder::new(workspace.path()).create("stdout");
            spill.to.unwrap().file.set_len(almost_full).unwrap();
        }
        let folder = SpillFolder::new(workspace.path());
        let mut spills = ["stdout", "stderr"].map(|stream| folder.create(stream));
        for spill in &mut spills {
            spill.write(&vec![b'x'; 1 << 24]);
            assert!(spill.describe().starts_with("the full text is in "));
        }
        let mut sizes = files(workspace.path());
        sizes.sort_unstable();
        assert_eq!(sizes, [almost_full, almost_full, MAX_FILE_BYTES, MAX_FILE_BYTES]);
    }

    #[test]
    fn what_is_no_regular_file_makes_no_room_and_is_in_no_way() {
        let workspace = tempfile::tempdir().unwrap();
        let target = workspace.path().join("target");
        std::fs::write(&target, "kept").unwrap();
        SpillFolder::new(workspace.path()).create("stdout").write(b"x");
        let at = |name: &str| workspace.path().join(".cli-mcp/output").join(name);
        std::fs::create_dir(at("00000002-stdout.txt")).unwrap();
        std::os::unix::fs::symlink(&target, at("00000003-stdout.txt")).unwrap();
        std::fs::create_dir(at("00000090-stdout.txt")).unwrap();
        for _ in 0..2 * MAX_FILES {
            let mut spill = SpillFolder::new(workspace.path()).create("stdout");
            spill.write(b"x");
            assert!(
                spill.describe().starts_with("the full text is in "),
                "{}",
                spill.describe()
            );
        }
        assert_eq!(files(workspace.path()).len(), MAX_FILES + 3);
        assert!(at("00000003-stdout.txt").is_symlink() && target.exists());
    }

    #[test]
    fn one_file_is_bounded_and_says_so() {
        let workspace = tempfile::tempdir().unwrap();
        let mut spill = SpillFolder::new(workspace.path()).create("stderr");
        for _ in 0..17 {
            spill.write(&vec![b'x'; 1 << 20]);
        }
        assert_eq!(files(workspace.path()), [MAX_FILE_BYTES]);
        assert!(
            spill.describe().starts_with("the first 16777216 bytes are in "),
            "{}",
            spill.describe()
        );
    }

    #[test]
    fn a_link_in_place_of_the_folder_is_not_followed() {
        let workspace = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        for depth in 0..2 {
            let link = if depth == 0 { ".cli-mcp" } else { ".cli-mcp/output" };
            if depth == 1 {
                std::fs::remove_file(workspace.path().join(".cli-mcp")).unwrap();
                std::fs::create_dir(workspace.path().join(".cli-mcp")).unwrap();
            }
            std::os::unix::fs::symlink(elsewhere.path(), workspace.path().join(link)).unwrap();
            let mut spill = SpillFolder::new(workspace.path()).create("stdout");
            spill.write(b"x");
            assert!(spill.describe().contains("could not be kept"), "{}", spill.describe());
            assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
        }
    }
}
