//! From kernel files to fatbins: one run of the front end a file and architecture, one object a file and target,
//! kept in the cache, and joined at the end.

use std::cmp::Reverse;
use std::ffi::OsString;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Result;
use super::nvcc::Nvcc;
use super::parallel::in_parallel;
use super::resources::{Resources, resources};
use super::sources::{KernelFile, front_end};

const FRONT_END_FLAGS: [&str; 5] = ["-std=c++17", "-O3", "-ptx", "-Ikernels", "-Ikernels/common"];
const PTXAS_FLAGS: [&str; 2] = ["-m64", "-v"];
const FATBINARY_FLAGS: [&str; 2] = ["-64", "--compress-mode=size"];

/// A file's code for its targets, and what ptxas said of it.
pub struct Compiled<'a> {
    pub file: &'a KernelFile,
    pub kernels: Vec<Resources>,
    /// None: there is no target.
    pub fatbin: Option<PathBuf>,
}

impl<'a> Compiled<'a> {
    pub fn empty(file: &'a KernelFile) -> Compiled<'a> {
        Compiled { file, kernels: Vec::new(), fatbin: None }
    }
}

/// One run of the front end, and the targets that its PTX is for.
struct Job<'a> {
    file: &'a KernelFile,
    architecture: String,
    targets: Vec<&'a str>,
}

pub fn compile<'a>(nvcc: &Nvcc, files: &'a [KernelFile], cache: &Path) -> Result<Vec<Compiled<'a>>> {
    fs::create_dir_all(cache).map_err(|e| format!("cannot make {}: {e}", cache.display()))?;
    // Of two builds at once, the second waits for what the first compiles, where the file system has locks.
    let lock =
        File::create(cache.join("lock")).map_err(|e| format!("cannot write to {}: {e}", cache.display()))?;
    let _ = lock.lock();
    let compiler = Compiler { nvcc, cache };
    let mut jobs: Vec<Job> = files.iter().flat_map(jobs).collect();
    // Those with the most code first, so that no core is left alone with a long one at the end.
    jobs.sort_by_key(|job| Reverse(job.file.lines()));
    in_parallel(&jobs, |job| compiler.objects(job))?;
    in_parallel(files, |file| compiler.join(file))
}

fn jobs(file: &KernelFile) -> Vec<Job<'_>> {
    let mut jobs: Vec<Job> = Vec::new();
    for target in &file.targets {
        let architecture = front_end(target);
        match jobs.iter_mut().find(|job| job.architecture == architecture) {
            Some(job) => job.targets.push(target),
            None => jobs.push(Job { file, architecture, targets: vec![target] }),
        }
    }
    jobs
}

struct Compiler<'a> {
    nvcc: &'a Nvcc,
    cache: &'a Path,
}

impl Compiler<'_> {
    /// Compiles what the cache does not hold.
    fn objects(&self, job: &Job) -> Result<()> {
        let missing: Vec<&str> =
            job.targets.iter().copied().filter(|target| self.kept(job.file, target).is_none()).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let file = &job.file.path;
        let ptx = Unfinished::new(self.cache.join(format!("{}-{}.ptx", job.file.stem, job.architecture)));
        let mut front_end = Command::new(&self.nvcc.path);
        front_end.args(FRONT_END_FLAGS).arg(format!("-arch=compute_{}", job.architecture));
        run(front_end.arg("-o").arg(&ptx.0).arg(file), file)?;
        for target in missing {
            let object = self.object(job.file, target);
            let unfinished = Unfinished::new(object.clone());
            if target.starts_with("compute_") {
                fs::copy(&ptx.0, &unfinished.0).map_err(|e| self.failed(e))?;
            } else {
                let mut ptxas = Command::new(&self.nvcc.ptxas);
                ptxas.args(PTXAS_FLAGS).arg(format!("-arch={target}"));
                let report = run(ptxas.arg(&ptx.0).arg("-o").arg(&unfinished.0), file)?;
                resources(file, &report)?;
                fs::write(object.with_extension("ptxas"), &report).map_err(|e| self.failed(e))?;
            }
            fs::rename(&unfinished.0, &object).map_err(|e| self.failed(e))?;
        }
        Ok(())
    }

    /// Joins a file's objects, all of which the cache holds.
    fn join<'f>(&self, file: &'f KernelFile) -> Result<Compiled<'f>> {
        if file.targets.is_empty() {
            return Ok(Compiled::empty(file));
        }
        let mut kernels = Vec::new();
        let (mut images, mut names) = (Vec::new(), Vec::new());
        for target in &file.targets {
            let object = self.object(file, target);
            kernels.extend(self.kept(file, target).ok_or_else(|| format!("{} is gone", object.display()))?);
            let (kind, architecture) = match target.split_once('_') {
                Some(("compute", architecture)) => ("ptx", architecture),
                Some((_, architecture)) => ("elf", architecture),
                None => return Err(format!("{target} is no target")),
            };
            images.push(format!("--image3=kind={kind},sm={architecture},file={}", object.display()));
            names.push(object.file_name().map(OsString::from));
        }
        let fatbin = self.named(file, "fatbin", (FATBINARY_FLAGS, names));
        if !is_whole(&fatbin) {
            let unfinished = Unfinished::new(fatbin.clone());
            let mut fatbinary = Command::new(&self.nvcc.fatbinary);
            fatbinary.args(FATBINARY_FLAGS).args(&images);
            run(fatbinary.arg(format!("--create={}", unfinished.0.display())), &file.path)?;
            fs::rename(&unfinished.0, &fatbin).map_err(|e| self.failed(e))?;
        }
        Ok(Compiled { file, kernels, fatbin: Some(fatbin) })
    }

    /// What ptxas said of a file's code for a target, if the cache holds that code.
    fn kept(&self, file: &KernelFile, target: &str) -> Option<Vec<Resources>> {
        let object = self.object(file, target);
        if !is_whole(&object) {
            return None;
        }
        if target.starts_with("compute_") {
            return Some(Vec::new());
        }
        let report = fs::read_to_string(object.with_extension("ptxas")).ok()?;
        resources(&file.path, &report).ok()
    }

    /// Where the cache holds a file's code for a target. Included headers and flags count, comments and times do not.
    fn object(&self, file: &KernelFile, target: &str) -> PathBuf {
        let extension = if target.starts_with("compute_") { "ptx" } else { "cubin" };
        let name = format!("{target}.{extension}");
        self.named(file, &name, (FRONT_END_FLAGS, PTXAS_FLAGS, front_end(target), file.code()))
    }

    fn named(&self, file: &KernelFile, name: &str, made_of: impl Hash) -> PathBuf {
        let mut hasher = DefaultHasher::new();
        (&self.nvcc.version, made_of).hash(&mut hasher);
        self.cache.join(format!("{}-{:016x}.{name}", file.stem, hasher.finish()))
    }

    fn failed(&self, error: std::io::Error) -> String {
        format!("cannot write to {}: {error}", self.cache.display())
    }
}

/// A file under a name of this process alone: another build may be at the same one, so each writes its own and
/// renames it. What was not renamed goes.
struct Unfinished(PathBuf);

impl Unfinished {
    fn new(mut path: PathBuf) -> Unfinished {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        path.set_file_name(format!("{}-{name}", std::process::id()));
        Unfinished(path)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // It is not there if all went well.
        let _ = fs::remove_file(&self.0);
    }
}

/// An empty image would be embedded as readily as a good one.
fn is_whole(path: &Path) -> bool {
    path.metadata().is_ok_and(|m| m.len() > 0)
}

/// Whatever the tool printed.
fn run(command: &mut Command, file: &Path) -> Result<String> {
    let tool = Path::new(command.get_program()).to_string_lossy().into_owned();
    let output = command.output().map_err(|e| format!("{tool} does not run: {e}"))?;
    let printed =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    if output.status.success() {
        return Ok(printed);
    }
    Err(format!("{tool} could not compile {}:\n{printed}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::super::sources::kernel_files;
    use super::*;

    #[test]
    fn the_front_end_runs_once_for_targets_that_share_its_ptx() {
        let files = kernel_files(Path::new("kernels")).unwrap();
        let file = files.iter().find(|file| file.stem == "add").unwrap();
        assert_eq!(file.targets, ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120", "compute_75"]);
        let runs: Vec<_> = jobs(file).into_iter().map(|job| (job.architecture, job.targets)).collect();
        let expected = [
            ("75", vec!["sm_75", "compute_75"]),
            ("80", vec!["sm_80"]),
            ("90", vec!["sm_90"]),
            ("100", vec!["sm_100", "sm_120"]),
        ];
        assert_eq!(runs, expected.map(|(architecture, targets)| (architecture.to_string(), targets)));
    }
}
