//! Other mounts while a run goes on.

use super::*;

/// Where mounts are shared, another file system can be unmounted while a run goes on. What the run
/// mounts is seen in it alone.
pub(super) fn a_run_keeps_no_other_mount_in_use(context: &Context) -> Result<()> {
    let stage = TxnStage::new(context, "txn-elsewhere")?;
    let script = "
        mount --make-rshared /
        $STITCHFS mount --create 64M $OUTSIDE/other.store $OUTSIDE/other
        trap 'umount -l $OUTSIDE/other 2> /dev/null || true' EXIT
        mkfifo $OUTSIDE/ready $OUTSIDE/go
        cat /proc/self/mountinfo > $OUTSIDE/before
        $STITCHFS txn run -- sh -euc \"
            echo inside > file; echo > $OUTSIDE/ready; read x < $OUTSIDE/go
            test ! -e $OUTSIDE/other/lost; cat file
            grep -c $OUTSIDE/other /proc/self/mountinfo || true
        \" > $OUTSIDE/said &
        read x < $OUTSIDE/ready
        cmp /proc/self/mountinfo $OUTSIDE/before
        code=0; $STITCHFS umount $OUTSIDE/other || code=$?
        cat file
        echo > $OUTSIDE/go
        wait $!
        cat file $OUTSIDE/said
        exit $code
    ";
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "bash", "-euc", script])
        .env("STITCHFS", &context.stitchfs)
        .env("OUTSIDE", &stage.outside)
        .current_dir(&stage.top);
    let (code, said) = ended(&mut command)?;
    ensure!(code == 0, "{code} {said}");
    ensure!(said.ends_with("beforeinside\ninside\n0\n"), "{said}");
    ensure!(fs::read(stage.top.join("file"))? == b"inside\n");
    stage.end()
}
