# shellcheck shell=bash
# Sources every part. The sourcing script has set `devcluster`, the folder above this one.
shopt -s inherit_errexit

# shellcheck source=messages.sh
. "${devcluster:?}/lib/messages.sh"
# shellcheck source=settings.sh
. "${devcluster:?}/lib/settings.sh"
# shellcheck source=lock.sh
. "${devcluster:?}/lib/lock.sh"
# shellcheck source=packages.sh
. "${devcluster:?}/lib/packages.sh"
# shellcheck source=program.sh
. "${devcluster:?}/lib/program.sh"
# shellcheck source=node.sh
. "${devcluster:?}/lib/node.sh"
# shellcheck source=components.sh
. "${devcluster:?}/lib/components.sh"
# shellcheck source=pki.sh
. "${devcluster:?}/lib/pki.sh"
# shellcheck source=controlplane.sh
. "${devcluster:?}/lib/controlplane.sh"
# shellcheck source=runtime.sh
. "${devcluster:?}/lib/runtime.sh"
# shellcheck source=kubelet.sh
. "${devcluster:?}/lib/kubelet.sh"
# shellcheck source=policies.sh
. "${devcluster:?}/lib/policies.sh"
# shellcheck source=dns.sh
. "${devcluster:?}/lib/dns.sh"
# shellcheck source=images.sh
. "${devcluster:?}/lib/images.sh"
# shellcheck source=health.sh
. "${devcluster:?}/lib/health.sh"
# shellcheck source=teardown.sh
. "${devcluster:?}/lib/teardown.sh"
