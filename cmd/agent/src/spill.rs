//! The folder that keeps the full text of outputs too long for a reply: bounded, and safe from what a command puts there.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::stat::{Mode, fstatat, mkdirat};
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

/// Where full outputs go.
#[derive(Clone, Debug)]
pub struct SpillFolder {
    workspace: PathBuf,
}

/// One output on its way to disk.
#[derive(Debug)]
pub struct Spill {
    file: Result<File, Errno>,
    path: PathBuf,
    kept: u64,
    cut: bool,
}

impl SpillFolder {
    /// A folder below `workspace`; nothing is made until an output needs it.
    #[must_use]
    pub fn new(workspace: &Path) -> Self {
        Self {
            workspace: workspace.to_owned(),
        }
    }

    /// Opens the file for one output, after the oldest made room for it. A failure is kept and told in the reply.
    #[must_use]
    pub fn create(&self, stream: &str) -> Spill {
        match self.try_create(stream) {
            Ok((file, path)) => Spill {
                file: Ok(file),
                path,
                kept: 0,
                cut: false,
            },
            Err(errno) => Spill {
                file: Err(errno),
                path: PathBuf::new(),
                kept: 0,
                cut: false,
            },
        }
    }

    fn try_create(&self, stream: &str) -> Result<(File, PathBuf), Errno> {
        let folder = self.open_folder()?;
        let next = make_room(&folder)?;
        let name = format!("{next:08}-{stream}{SUFFIX}");
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = openat(&folder, name.as_str(), flags, Mode::S_IRUSR | Mode::S_IWUSR)?;
        let mut path = self.workspace.clone();
        path.extend(FOLDERS);
        Ok((File::from(file), path.join(name)))
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

/// Deletes the oldest files until one more of the largest size fits; gives the next sequence number.
fn make_room(folder: &OwnedFd) -> Result<u64, Errno> {
    let mut listing = Dir::openat(
        folder,
        ".",
        OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
        Mode::empty(),
    )?;
    let mut files: Vec<(u64, String, u64)> = listing
        .iter()
        .filter_map(Result::ok)
        .filter_map(|entry| {
            let name = entry.file_name().to_str().ok()?.to_owned();
            let sequence = name.strip_suffix(SUFFIX)?.split_once('-')?.0.parse().ok()?;
            let stat = fstatat(folder, name.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW).ok()?;
            Some((sequence, name, u64::try_from(stat.st_size).unwrap_or(0)))
        })
        .collect();
    files.sort_unstable();
    let next = files.last().map_or(1, |(sequence, ..)| sequence.saturating_add(1));
    let mut total: u64 = files.iter().map(|(.., size)| size).sum();
    let mut count = files.len();
    for (_, name, size) in files {
        if count < MAX_FILES && total + MAX_FILE_BYTES <= MAX_TOTAL_BYTES {
            break;
        }
        unlinkat(folder, name.as_str(), UnlinkatFlags::NoRemoveDir)?;
        count -= 1;
        total = total.saturating_sub(size);
    }
    Ok(next)
}

impl Spill {
    /// Appends, up to the bound of one file; the first failure ends it.
    pub fn write(&mut self, bytes: &[u8]) {
        let Ok(file) = &mut self.file else { return };
        let room = usize::try_from(MAX_FILE_BYTES - self.kept).unwrap_or(usize::MAX);
        let part = &bytes[..bytes.len().min(room)];
        self.cut |= part.len() < bytes.len();
        match file.write_all(part) {
            Ok(()) => self.kept += part.len() as u64,
            Err(error) => {
                self.file = Err(errno_of(&error));
            }
        }
    }

    /// The words of the reply's line that say where the full text is.
    #[must_use]
    pub fn describe(&self) -> String {
        match &self.file {
            Ok(_) if self.cut => format!("the first {} bytes are in {}", self.kept, self.path.display()),
            Ok(_) => format!("the full text is in {}", self.path.display()),
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
        let folder = SpillFolder::new(workspace.path());
        for _ in 0..200 {
            folder.create("stdout").write(&vec![b'x'; 1 << 20]);
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
