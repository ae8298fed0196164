"""Words that users and tools use for the same thing.

Each line is a group. A word may be in several groups. Underscores join the words of a phrase.
"""

from __future__ import annotations

# General words of programming, files, the web and business. Words that share a stem need no group.
_GROUPS = """
    create make new add generate build insert write post
    create open start file report
    delete remove erase drop destroy clear discard purge unlink uninstall
    get show read view display fetch retrieve see look print give inspect
    get list which
    list enumerate show browse view
    search find look_up look query locate grep discover
    update edit change modify patch set alter adjust replace
    send post notify publish message tell
    run execute exec evaluate eval invoke call launch
    start begin launch open
    stop end cancel abort kill terminate halt finish close
    download fetch get scrape load
    upload push attach send import
    move rename relocate
    rename name
    copy clone duplicate fork
    save store write keep export persist
    remember memory memorize recall note observation fact
    forget delete memory
    compare diff difference change
    undo revert reset roll_back restore rollout
    stage add
    history log past previous commit
    log event message output
    folder directory dir path
    file document
    picture image screenshot photo capture icon
    web internet online website site page url
    link url
    button click press tap hit
    key keyboard shortcut
    type enter input fill text
    mouse pointer hover
    navigate go visit browse open
    tab page window
    how_large how_big size length dimension
    size resize large big
    how_many count number amount total sum
    error bug issue problem exception crash failure defect ticket
    user person people member account profile contact
    who_am_i self account login user
    chat conversation message channel thread
    answer reply respond response
    comment note remark
    database db mongodb sql
    table collection
    row record document entry
    group aggregate sum
    route direction way drive
    coordinate latitude longitude geocode
    location place position address
    near nearby local
    height elevation altitude high
    distance travel far
    documentation doc reference guide manual help
    library package framework module dependency
    convert conversion transform translate parse
    wait sleep delay
    pause stop suspend
    select choose pick option
    approve review accept confirm
    dismiss reject dialog alert popup confirm
    land merge
    pr pull
    mr merge
    ci check status build
    status state progress done ready finished
    container pod docker
    kubernetes k8s kubectl cluster pod
    deploy apply install release
    restart rollout reboot
    version release tag
    relation link connect edge relationship
    node entity
    explain analyze describe inspect examine detail
    describe structure schema
    video screencast record movie
    mail email inbox
    calendar event meeting appointment schedule
    monitor watch track observe
    money payment pay charge invoice bill
    order purchase buy
    current now today
    time date clock
    simulate emulate mimic imitate mock
    slow performance speed fast trace throttle
    network request xhr http traffic
    dark theme color scheme
    repository repo project
    source code
    log_in sign_in login authenticate connect auth
    logout disconnect
    paper article publication scientific arxiv
    research investigate study
    news article web
    crawl spider website
    map sitemap
    rate feedback score rating
    emoji reaction react
    team group organization
    permission access allow
    javascript js script
    python py
    environment env variable
    config configuration setting configure set_up
    command shell terminal bash
    password secret credential token
    task todo job
    summarize summary digest
    text content body
    shop store business restaurant
    latest recent last
    compress zip gzip archive
    trash archive delete
    property attribute field column
    block paragraph
    subscribe follow watch
"""


def synonym_groups() -> list[list[str]]:
    return [line.replace("_", "").split() for line in _GROUPS.strip().splitlines()]
