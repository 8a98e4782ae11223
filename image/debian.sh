#!/bin/sh
# Unpacks the packages of packages.txt for one architecture into an empty root; and gives the builder its Python.
# No script of a package runs, so the architecture need not be the builder's.
set -eu
arch=$1
root=$2
here=$(dirname "$0")

rm -f /etc/apt/sources.list.d/* /etc/apt/apt.conf.d/docker-clean
cat >/etc/apt/sources.list <<EOF
deb $DEBIAN bookworm main
deb $DEBIAN bookworm-updates main
deb $DEBIAN_SECURITY bookworm-security main
EOF
# An old state of the archive is no longer valid by its own date; it is signed all the same.
echo 'Acquire::Check-Valid-Until "false"; Acquire::Retries "3"; APT::Sandbox::User "root";' >/etc/apt/apt.conf.d/archive
dpkg --add-architecture "$arch"
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends python3.11-venv >/dev/null

mkdir -p "$root" /packages
for name in bin sbin lib lib64; do
    mkdir -p "$root/usr/$name"
    ln -s "usr/$name" "$root/$name"
done
cd /packages
sed 's/ *#.*//; /^$/d; s/$/:'"$arch"'/' "$OLDPWD/$here/packages.txt" | xargs apt-get download -qq
mkdir -p "$root/var/lib/dpkg/status.d"
for package in *.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -x -C "$root" --keep-directory-symlink
    # Where vulnerability scanners look in an image without dpkg.
    dpkg-deb --field "$package" >"$root/var/lib/dpkg/status.d/$(dpkg-deb --field "$package" Package)"
done

cd "$root"
find usr/share/doc -type f ! -name copyright -delete
rm -rf usr/share/man usr/share/info usr/share/lintian usr/share/bug usr/share/locale usr/share/i18n \
    etc/update-motd.d usr/share/applications usr/share/pixmaps usr/share/binfmts usr/share/python3 usr/lib/*/gconv
find usr/share -type d -empty -delete
# Modules of the standard library whose libraries are not here: curses, dbm, nis, readline, sqlite3.
for module in _curses _curses_panel _dbm nis readline _sqlite3; do
    rm -f usr/lib/python3.11/lib-dynload/"$module".*.so
done
# Nothing to run but Python and ldconfig; some of the rest would need a shell.
find usr/bin usr/sbin -mindepth 1 ! -name 'python3*' ! -name ldconfig -delete
find . ! -type l -perm /6000 -exec chmod a-s {} +
ln -s python3.11 usr/bin/python3

printf 'root:x:0:0:root:/root:/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/nonexistent:/sbin/nologin\n' >etc/passwd
printf 'root:x:0:\nnobody:x:65534:\nnonroot:x:65532:\n' >etc/group
printf 'passwd: files\ngroup: files\nhosts: files dns\n' >etc/nsswitch.conf
rm -rf var/run var/lock
ln -s /run var/run
ln -s /run/lock var/lock
mkdir -p tmp root run/lock var/tmp
chmod 1777 tmp var/tmp
chown -R 0:0 .
# Bytecode that is never checked against times: the image is read-only, and the same from every build.
python3.11 -m compileall -q -s "$root" --invalidation-mode unchecked-hash usr/lib/python3.11
find . -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
